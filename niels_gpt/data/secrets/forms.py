"""Tables of what secrets look like, and how a word in the place of a secret is judged.

The languages are English, German, French, Spanish, Portuguese, Italian and Dutch, and single words of some others. All
words are in lower case; patterns are matched without regard to case where words are involved.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

Found = Iterator[tuple[int, int, str]]  # start, end, kind

SHORTEST_PASSWORD, SHORTEST_VALUE = 4, {True: 6, False: 8}  # a word alone; letters and digits: a password, a key
SHORTEST_KEY = 16  # characters of a token that needs no name, or little of one
_PLACEHOLDER = re.compile(
    r"(?i)[\[…]|<[^<>]*>|\$?\{|\$\(|(?-i:\$[A-Z_][A-Z0-9_]*$)|\$\w*(?:pass|pw|token|secret|key)\w*$|%\w+%"
    r"|(?:https?:)?//|www\.|!\[|\(+\w|[*_x.•●·-]+$"
    r"|(?:your|enter|insert|some)[ _-]|(?-i:[A-Z_]*(?:PASS|TOKEN|KEY|SECRET|PW)[A-Z_]*$)"
    r"|(?:~|\.{0,2})/(?:[\w.-]+/)*[\w-]*[a-z_-]$"  # a path
    r"|[a-z_]+(?:\.[a-z_]+)*[(\[]|(?-i:[a-z_]+(?:\.(?:[a-z_][A-Za-z_]*[0-9]?|[A-Z_]+))+$)"  # code that asks for it
)
_PROSE = re.compile(
    "(?i)(?:passwords?|passwd|pass|pwd|passphrase|secret|token|string|text|value|here|none|null|nil|true|false|yes|required"
    "|optional|hidden|redacted|masked|removed|undefined|unset|empty|unknown|same|changed|changeme|protected|incorrect"
    "|invalid|wrong|correct|reset|forgotten|example|default|managers?|generator|policy|hash|hashed|login|email|username"
    "|user|name|admin|1password|security|strong|weak|good|random|below|above|this|that|they|with|what|when|your|their"
    r"|base(?:32|58|64)|sha-?\d{1,3}|md5|oauth\d?|utf-?8|web[23]|ipv[46]|(?:aes|rsa|wpa)-?\d{0,4}"
    r"|[\w-]+\.(?:md|txt|py|js|html?))"
)
_STRONG = ("[a-z]", "[A-Z]", "[0-9]", r"[!@#$%^&*+=~?](?=.)")
_OPEN, _CLOSED = "([{<«\u2018„", ")]}>»”\u2019“"  # German closes with what English opens with
_QUOTES = {'"': re.compile('"'), "`": re.compile("`"), "'": re.compile(r"(?<!\w)'")}  # no apostrophes


def is_random(value: str) -> bool:
    """Tell a random string from an identifier: it changes often between digits, capitals and small letters."""
    body = max(re.split("[^A-Za-z0-9]", value), key=len)
    classes = re.sub("[A-Z]", "A", re.sub("[a-z]", "a", re.sub("[0-9]", "0", body)))
    changes = sum(a != b for a, b in pairwise(classes))
    return len(body) >= 10 and 2 <= classes.count("0") < len(body) and 5 * changes >= len(body)


def is_mixed(value: str) -> bool:
    """Check for letters and digits without a space: few words of prose have both."""
    return not re.search(r"\s", value) and bool(re.search(r"[^\W\d_]", value) and re.search(r"\d", value))


def is_strong(value: str, kinds: int) -> bool:
    """Check for 8 characters of at least `kinds` kinds: lower case, upper case, digits, signs."""
    return len(value) >= 8 and sum(bool(re.search(form, value)) for form in _STRONG) >= kinds


def is_placeholder(value: str) -> bool:
    """Check for a placeholder of a secret: `<password>`, `$TOKEN`, `********`, a path, a call."""
    return not value or bool(_PLACEHOLDER.match(value))


def is_harmless(value: str) -> bool:
    """Check for placeholders, and for words that prose has behind the name of a secret."""
    bare = value.strip(".,;:!?()*_\"'`|")
    return is_placeholder(value) or is_placeholder(bare) or bool(_PROSE.fullmatch(bare))


def without_closing(value: str, before: str) -> str:
    """Cut a value at the first quote or bracket that closes what was opened before it, and at its last comma.

    `before` is the line up to the value. A bracket inside a password is part of it; one at its end that the password
    does not open itself is not.
    """
    for quote, form in _QUOTES.items():
        if len(form.findall(before)) % 2:
            value = value.partition(quote)[0]
    value = value.removesuffix("\\") if value != "\\" else value
    depth = 0
    for place, character in enumerate(value):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSED:
            depth -= 1
            if depth < 0 and not value[place + 1 : place + 2].isalnum():
                value = value[:place]
                break
    return value.rstrip("\"'`,;|")


def line_before(text: str, place: int, *, most: int = 200) -> str:
    """Return the line up to a position, at most `most` characters of it."""
    reach = max(0, place - most)
    return text[max(reach, text.rfind("\n", reach, place) + 1) : place]


KEY, PRIVATE_KEY, TOKEN, PASSWORD, CARD, IBAN = "api key", "private key", "token", "password", "card number", "iban"
PIN, CODE, SEED = "pin", "recovery code", "seed phrase"
EMAIL, PHONE, ID = "e-mail address", "telephone number", "national id"


def kind_of(name: re.Match[str]) -> str:
    """Return the kind of secret that a match of `NAME` says."""
    return PASSWORD if name["password"] or name["short"] else KEY


_ALPHABETS = {
    "%A": "[A-Za-z0-9]",
    "%B": "[A-Za-z0-9+/]",
    "%C": (  # capitals and digits, and no IBAN
        "(?<!-)(?=[A-Z0-9-]{0,28}[0-9])(?=[A-Z0-9-]{0,28}[A-Z])(?![A-Z]{2}[0-9]{2}-[A-Z0-9]{4}-[0-9]{4}-[0-9])"
    ),
    "%D": "(?=[A-Za-z0-9_-]{0,250}?[0-9])",  # a digit is to come
    "%H": "[0-9a-f]",
    "%I": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "%U": "[A-Za-z0-9_-]",
    "%5": "[1-9A-HJ-NP-Za-km-z]",
}
# Published formats, each behind its provider. A token is at least 16 characters without a space, with no letter or
# digit on either side.
_PROVIDERS = r"""
1Password ops_eyJ[A-Za-z0-9+/=_-]{100,2000}|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{5,11}-){3,5}[A-Z0-9]{5}  Adafruit aio_%A{28}
Adobe p8e-%A{32}  Adyen AQE%B{80,200}={0,2}  age AGE-SECRET-KEY-1[A-Z0-9]{58}  Airtable pat%A{14}\.%H{64}
Alibaba-Cloud LTAI%A{12,20}  Artifactory AKCp%A{66,73}|cmVmd%A{59}  Asana [01]/[0-9]{16}(?:/[0-9]{16})?:%H{32}
Atlassian AT[AC]TT3[A-Za-z0-9_=+-]{60,250}  AWS (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|ABSK%B{100,270}={0,2}
Azure (?:AccountKey|SharedAccessKey)=%B{40,90}={0,2}  Azure-Entra-ID [A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}
Bitbucket ATBB%A{32}  Bitcoin [xyz]prv%5{100,112}|[5KL](?=%5{0,40}[1-9])%5{50,51}
Bot-of-Discord [MNO]%U{23,25}\.%U{6}\.%U{27,38}  Bot-of-Telegram [0-9]{8,10}:AA%U{33}
Braintree access_token\$(?:production|sandbox)\$[a-z0-9]{16}\$%H{32}  Brevo x(?:keysib|smtpsib)-%H{64}-%A{16}
Buildkite bk[a-z]{2}_%H{40}  crates.io cio%D%A{32}  DeepL %I:fx  Firebase %U{11,22}:APA91b%U{120,160}
CircleCI CCIPAT_%A{22}_%H{40}  Clojars CLOJARS_[a-z0-9]{60}
Cloudflare v1\.0-%H{24}-%H{140,150}|cf(?:ut|at|k)_%A{40,60}  Contentful CFPAT-%U{43}  Databricks dapi%H{32}(?:-[0-9])?
Databricks-OAuth dose%H{32}  DigitalOcean do[opr]_v1_%H{64}  Docker dckr_[po]at_%U{20,64}
Doppler dp\.[a-z]{2,5}\.(?:[a-z0-9_-]{2,35}\.)?%A{40,44}  Dropbox sl\.(?:u\.)?%U{100,1500}
Dynatrace dt0[a-z][0-9]{2}\.[A-Z0-9]{8,24}\.[A-Z0-9]{64}  EasyPost EZ[AT]K%A{54}  Elastic essu_[A-Za-z0-9+/=]{40,120}
Facebook EAA[A-Z]%A{80,400}  Figma fig[dor]h?_%U{36,64}  Fireworks fw_%A{22,40}
Flutterwave FLWSECK(?:_TEST)?-%A{12,40}(?:-X)?  Fly fo1_%U{43}|fm[12][ar]?_[A-Za-z0-9+/=_-]{80,3000}
GitHub gh[pousr]_%A{36,255}|github_pat_[A-Za-z0-9_]{22,255}
GitLab gl(?:pat|rt|dt|cbt|ptt|soat|ft|imt|agent|oas|ffct)-%U{20,64}(?:\.[a-z0-9.]{8,20})?
Google AIza%U{35}|GOCSPX-%U{28}|ya29\.%U{20,1024}|1//0%U{40,120}
Grafana gl(?:sa|c)_[A-Za-z0-9+/_]{32,400}={0,2}|eyJrIjoi%A{40,400}={0,3}  Groq gsk_%A{40,64}
Heroku HRKU-(?:AA%U{40,70}|%I)  Hook-of-Discord discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]{20,255}
Hook-of-Slack hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{20,255}
Hook-of-Teams (?:[a-z0-9-]{1,60}\.webhook|outlook)\.office\.com/webhookb?2?/[A-Za-z0-9@/_-]{40,300}
Hook-of-Zapier hooks\.zapier\.com/hooks/catch/[0-9]{4,12}/[a-z0-9]{5,20}  HubSpot pat-[a-z]{2}[0-9]-%I
Hugging-Face hf_%A{30,64}|api_org_%A{34}  Infracost ico-%A{32}  LangSmith lsv2_[a-z]{2}_%H{32}_%H{10}
LaunchDarkly (?:sdk|mob|api)-%I  Licence %C[A-Z0-9]{4,6}(?:-[A-Z0-9]{4,6}){3,7}(?!-)
Linear lin_(?:api|oauth|wh)_%A{32,64}  Mailchimp %H{32}-us[0-9]{1,2}  Mailgun (?:key|pubkey)-%H{32}|%H{32}-%H{8}-%H{8}
Mapbox [st]k\.eyJ%U{20,400}\.%U{20,40}  Matrix syt_[A-Za-z0-9+/=]{1,120}_%A{20}_%A{6}  MaxMind %A{6}_%A{29}_mmk
Mollie (?:live|test)_%D%U{30,42}  MongoDB-Atlas mdb_sa_sk_%U{30,60}  Netlify nf[a-z]_%A{36,40}
New-Relic NRAK-[A-Z0-9]{27}|NR(?:JS|II|IQ|BR|RA|AA)-%U{19,40}|%H{36}NRAL  ngrok 2%A{26}_%A{20,22}
Nostr nsec1[02-9ac-hj-np-z]{58}  Notion (?:secret|ntn)_%A{40,50}  npm npm_%A{36}  NuGet oy2[a-z0-9]{43}
NVIDIA nvapi-%U{50,80}  Octopus-Deploy API-[A-Z0-9]{26,32}  Okta 00(?=[^A-Z]{0,40}[A-Z])(?=[^a-z]{0,40}[a-z])%U{40}
OpenAI-Anthropic sk-(?=[A-Za-z_-]{0,250}[0-9])%U{20,250}  OpenShift sha256~%U{43}
PASETO v[1-4]\.(?:local|public)\.%U{40,2000}(?:\.%U{1,200})?  PayPal A21AA%U{80,120}  Perplexity pplx-%A{32,64}
Pinecone pcsk_[A-Za-z0-9_]{50,90}  Plaid access-(?:sandbox|development|production)-%I
PlanetScale pscale_[a-z]{2,8}_[A-Za-z0-9_=.-]{32,64}  PostHog ph[xs]_%A{40,60}  Postman PMAK-%H{24}-%H{34}
Prefect pn[ub]_[a-z0-9]{36}  Pulumi pul-%H{40}  PyPI pypi-%U{50,400}  RapidAPI %H{10}msh%H{15}p1%H{6}jsn%H{12}
Razorpay rzp_(?:live|test)_%A{14,30}  ReadMe rdme_[a-z0-9]{70}  Recovery-key-of-BitLocker [0-9]{6}(?:-[0-9]{6}){7}
Render rnd_%A{28,40}  Replicate r8_%A{30,64}  Resend re_%A{8}_%A{24}  RubyGems rubygems_%H{48}  Scalingo tk-us-%U{48}
SendGrid SG\.%U{16,32}\.%U{16,64}  Sentry sntry[su]_[A-Za-z0-9+/=_-]{40,400}|(?<=://)%H{32}(?=@[a-z0-9.]{0,40}sentry)
Shippo shippo_(?:live|test)_%H{40}  Shopify shp[a-z]{2,3}_[0-9a-fA-F]{32}
Slack xox[abceoprsd](?:\.xox[a-z])?-[A-Za-z0-9-]{10,255}|xapp-[0-9]-[A-Za-z0-9-]{10,255}  Sonar sq[upa]_%H{40}
Sourcegraph sgp_(?:[a-z0-9]{5,16}_)?%H{40}|slk_%H{64}  Square sq0[a-z]{3}-%U{22,43}|EAAA%U{60}
Stripe [rs]k_(?:live|test|prod)_%A{10,255}|whsec_[A-Za-z0-9+/=]{24,88}  Supabase sbp_%H{40}|sb_secret_%U{20,60}
Tailscale tskey-(?:[a-z]{2,12}-)?%A{8,24}(?:-%A{10,48})?  Tavily tvly-%U{20,60}
Terraform-Cloud %A{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}  Twilio SK%H{32}  Typeform tfp_[A-Za-z0-9_.=-]{40,64}
Vault hv[sbr]\.%U{20,300}|s\.%D%A{24}  Vercel vc[a-z]_%A{24,64}|vercel_blob_rw_[A-Za-z0-9_]{30,70}  Voyage pa-%D%U{43}
WakaTime waka_%I  WooCommerce c[ks]_%H{40}  xAI xai-%A{40,100}  Yandex AQVN%U{35,38}|y0_%U{50,80}
Zoho 1000\.%H{32}\.%H{32}
"""
PROVIDERS = re.sub("%.", lambda found: _ALPHABETS[found[0]], "|".join(_PROVIDERS.split()[1::2]))

# Names of secrets. Each may end a longer one: DB_PASSWORD, dbPassword, Routerpasswort. A name is searched for by its
# anchor: it begins there, and looks behind for what stands before. Anchors begin with the rarer letters of their names,
# which halves the time of the search.
NAME = (
    "(?i)(?:"
    # of passwords
    "(?P<password>(?<!no)passw(?:or)?[dt]|passphrase|passcode|passord|(?<=mot de )passe|(?<=palavra[- ])passe"
    "|(?<=require)pass|(?<=store)pass|(?<=key)pass|(?<=p)wd|kennwort|(?<=wacht)woord|contrase[ñn]a|(?<=adgangs)kode"
    "|kodeord|(?<=l)ösenord|senha|пароль|(?<=ps)k|parola d['\u2019]ordine|(?<=sungs|eheim)wort|phrase secr[èe]te)"
    # of passwords: words of other uses, too
    r"|(?P<short>(?<![^\W_])(?:pass|mdp)|(?<![^\W_]p)(?<=p)w|(?<![^\W_]w)(?<=w)w|(?<![^\W_]ps)(?<=ps)w|(?<=cla)ve)"
    # of keys
    "|(?P<key>(?<=se)cret(?:[ _-]?(?:access)?[ _-]?key)?|(?<=se)creto|(?<=se)gre[td]o|geheimnis|(?<=to)ken|jeton)"
    # of keys: weak evidence without a word such as API before it
    "|(?P<plain>key|(?<=cha)ve|(?<=chia)ve|clé|(?<=schl)üssel|(?<=sle)utel|seed|(?<=a)ppid(?==)|(?<=a)uth"
    r"|(?<=si)g(?:nature)?(?==)|(?<![^\W_])(?:wi-?fi|wlan))"
    r")(?![^\W_])(?:_\w{1,30}+)?+"
)
KEY_KINDS = (
    "api|access|auth|account|encryption|signing|master|private|preshared|pre-shared|shared|secret|licen[cs]e|wpa2?"
    "|wi-?fi|wlan|network|session|deploy|service|admin|netzwerk|zugriffs|zugangs|lizenz|geheime[rn]?|toegangs"
    "|authenticator|acc[eè]s\\w*|acesso|s[eé][cg]u\\w+|sicurezza|licen\\w+|secr\\w+|segret\\w|r[ée]seau|rede?|rete"
    "|modem|router|vpn"
)
ANCHORS = re.compile(
    r"b(?:earer |ox(?<=lockbox))|c(?:o(?:de|di[cg]|mbina|mbo\b|ntrase)|lé|ódig|r(?:ed|et(?<=secret)|yptogramme)|hloss"
    r"|a(?:den|ndad|dead)[ao]|chetto|ijferslot)|f(?:i(?<=identifi)(?:ant|ed )|ra(?:ge(?<=sfrage)|se ))|g(?:e(?:heimnis"
    r"|gevens)|-?in(?<=login|og-in)|re[td]o|slot|(?<=sig)(?:nature)?(?==))|jeton|k(?:e(?:ypad|y ?safe|y|nnwort"
    r"|n(?<=token))|ode|ombina|luis|ie:|(?<=psk)|(?<=unlock))|m(?:dp|in(?= ?[/:])|nemonic|emorable w|eldedaten|anda seg"
    r"|(?<=isarm))|p(?:pid=|a(?:dlock|ss|rola d)|hrase|in(?![abd-mo-z])|rüfziffer|onse sec|uesta se|osta se|(?:re"
    r"|er)gunta )|question(?: sec|(?<=[yt] question))|u(?:th(?<=auth)|tel(?<=sleutel)|k(?<=puk)|nscharf)|üssel(?:box"
    r"|safe|tresor)?|v(?:e(?<=clave|chave|hiave)|[vc](?<=cv[vc])|[ea]r(?<=activ[ea]r)|are(?<=attivare)|raag)"
    r"|w(?:oor(?:d(?<=twoord)|den)|ort(?<=swort|mwort)|i-?fi|lan|ords(?<=[24] words)|örter|er(?<=[yt] answer)|(?<=pw)"
    r"|(?<=psw)|(?<=ww)(?![\w.]))|z(?:ugang|ahl(?<=heimzahl)|in(?<=stelzin))|ösenord|пароль"
)
OTHER_ANCHORS = ("senha", "seed", "tan ")  # without a rare letter
FOR_WHAT = (  # "password for the router", "Passwort vom WLAN"
    "for|of|to|on|from|at|für|fürs|zum|zur|vom|von|des|der|im|am|beim|pour|de|du|del|della|dello|dei|para|do|da|dos|das"
    "|per|di|van|voor|op|til"
)
VERBS = (
    "is|was|are|c'est|will be|reads|ist|sind|war|lautet|lautete|heißt|heisst|est|sera|était|es|era|será|son|é|foi|è"
    r"|sarà|luidt|(?:[^\W\d_]{2,14}[ \t]){0,3}(?:to|auf|in|en|a|para|naar)"  # "has been changed to"
)
NAMING_VERBS = ("lautet", "lautete", "luidt")  # nothing but the value follows these
ADVERBS = (
    "now|still|currently|again|simply|just|jetzt|nun|noch|immer noch|wieder|aktuell|einfach|maintenant|toujours"
    "|désormais|ahora|todavía|agora|ainda|ora|adesso|ancora|nu|nog|nog steeds"
)
# What stands between a password and its name: "x is the new password", "benutze x als Passwort"
VALUE_FIRST_VERBS = "as|is|als|ist|comme|est|como|es|é|come|è"
ARTICLES = (
    "the|my|our|your|new|das|mein|neues|unser|le|mon|nouveau|la|mi|nueva|o|a|minha|nova|il|mia|nuova|het|mijn|nieuwe"
    "|wi-?fi|wlan|mot|de"
)

# Names of a pair, a user and a password; of a number; of a list of codes.
LOGIN_NAMES = (
    r"(?<![\w./-]ad)(?<=ad)(?=min)|(?<=lo)g-?in|credentials?|creds|zugang(?:sdaten)?|(?<=an)meldedaten|(?<=identi)fiants?|credenciales|credenciais"
    "|credenziali|(?<=inlog)gegevens|(?<=user/|name/)pass(?:wor[dt])?"
)
PIN_NAMES = (  # behind these a number is a secret, whatever else the line says
    r"(?:(?<![^\W_])(?:PIN|Pin)|(?<=C)V[VC]2?|(?<=P)UK|(?<![^\W_])TAN|(?<=eheim)zahl|[Cc]ryptogramme|[Pp]rüfziffer)"
    r"(?:[ -]?(?:[12](?=:)|code|Code|nummer|Nummer|number|Nr\.?))?"
)
CODE_WORDS = (  # behind these a number is a secret if the line says what it opens
    r"codes?|c[óo]d(?:igo|ice)|pin(?:[ -]?code)?|[ck]ombina(?:tion|ci[óo]n|[çc][ãa]o|zione|ison|tie)|combo|(?<=unloc)k"
    r"|keypad|(?<=lock)box|padlock|key ?safe|(?<=s)chloss|cadenas|candado|cadeado|(?<=lu)cchetto|cijferslot"
    r"|(?<=han)gslot|kluis(?:je)?|(?<=schl)üssel(?:box|safe|tresor)|(?<=cla)ve|senha|(?<=disar)m|(?<=acti)v[ea]r"
    r"|(?<=atti)vare|unscharf"
)
OPENED = re.compile(
    r"(?i)door|gate\b|garage|alarm|safe\b|locke?r?\b|pad ?lock|lockbox|keypad|key ?safe|\bentry|access|unlock|security"
    r"|\bcards?\b|credit|debit|\batm\b|\bbank|\bsim\b|voicemail|radio|wi-?fi|wlan|tür|\btor\b|tresor|schloss"
    r"|schlüssel|karte|(?<=unter)schließ|\bbox\b|fiets"
    r"|zugang|sperr|sicherheit|konto|porte\b|portail|immeuble|entrée|bâtiment|accès|coffre|cadenas|carte|\bcb\b|secret"
    r"|confidentiel|verrouill|digicode|interphone|puerta|portal|garaje|caja|cajero|tarjeta|acceso|candado|seguridad"
    r"|bloqueo|móvil|\bport[aãeo]|prédio|cofre|cartão|acesso|garagem|cadeado|segurança|celular|cancell|cassaforte"
    r"|allarme|antifurto|\bcarta|bancomat|sblocc|lucchetto|segret|deur|poort|kluis|slot\b|\bpas\b|kaart|toegang"
    r"|grendel|inlog|disarm|désactiv|unscharf|disattiv|desactiv|passnumber|multibanco"
)
DIALLING_VERBS = "opens with|uses|use|enter|type|press|dial|mit|taper|composer|marcar|digitare|digitar|met|avec|con|com"
CODE_KINDS = re.compile(  # in front of "code" or "codes"
    r"(?i)(?:recovery|back-?up|scratch|emergency|rescue|sicherungs?|2fa|one-time|wiederherstellungs?|notfall|ersatz"
    r"|herstel|reserve|einmal|activation)[ -]?\Z"
)
CODE_NAMES = re.compile(
    "(?i)codes? de (?:r[ée]cup[ée]ration|secours|sauvegarde)"
    "|c[óo]digos? de (?:recuperaci[óo]n|respaldo|emergencia|recupera[çc][ãa]o|backup|emerg[êe]ncia)"
    "|codic[ei] di (?:recupero|backup|emergenza|riserva)"
)
# Names of words, from their anchors on: of the answer to a security question, and of a seed phrase that no list has.
ANSWERS = (
    r"(?:(?<=security )|(?<=secret ))questions?|question secrète|(?:(?<=security ans)|(?<=secret ans))wer"
    r"|memorable word|(?<=sicherheits)frage|(?<=ré)ponse secrète|p(?:re|er)gunta (?:secreta|de segur\w+)"
    r"|(?<=[ei]s)p(?:uest|ost)a se[cg]reta|(?<=do)manda segreta|(?<=heime |igings)vraag"
)
PHRASES = (
    r"seed|mnemonic|(?:(?<=recovery )|(?<=ungs))phrase|phrase de récupération|(?<=[24] )w(?:ords|oorden|örter)"
    r"|(?<=herstel)zin|frase (?:semilla|semente|seme|mnem\w+|de recup\w+|di recupero)"
)

# Options with a password behind them: commands, and the option as far as the value.
OPTIONS = (
    ("curl|wget|lftp|https?|xh|ab", r"(?:-u|--(?:proxy-)?user)[ =]?[\"']?[^\s:\"']{1,80}:"),
    (r"mysql\w*|mariadb[\w-]*|7za?|7zr|rar|unrar|sshpass", "-p(?![ =])"),
    ("sshpass|docker|podman|helm|az|mongo\\w*|influx|rdesktop|oc|skopeo|buildah", "-p[ =]"),
    ("redis-cli|cqlsh", "-a[ =]"),
    (r"(?:un)?zip|sqlcmd|bcp|mosquitto_\w+|ipmitool|isql|tsql", "-P[ =]?"),
    (r"ldap\w+|nxc", "-[wp] "),
    ("smbclient|rpcclient|net|smbmap|wmic", r"-U[ =]?[^\s%]{1,80}%"),
    ("htpasswd", r"-[A-Za-z]*b[A-Za-z]*(?:\s+-\w+)*\s+\S{1,200}\s+\S{1,80}\s+"),
    (r"snmp\w+", "-[AX] "),
    ("openssl|gpg2?", "-(?:[kK]|pass\\w*) (?:pass:)?"),
)
