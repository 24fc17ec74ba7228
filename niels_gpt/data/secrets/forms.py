"""Tables of what secrets look like, and how a word in the place of a secret is judged.

The languages are English, German, French, Spanish, Portuguese, Italian and Dutch, and single words of some others. All
words are in lower case; patterns are matched without regard to case where words are involved.
"""

from __future__ import annotations

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
_OPEN, _CLOSED = "([{<«“\u2018„", ")]}>»”\u2019“"
_QUOTES = {'"': re.compile('"'), "`": re.compile("`"), "'": re.compile(r"(?<!\w)'")}  # no apostrophes
_NEXT_FIELD = re.compile(r"[;,](?=\s{0,2}[A-Za-z][\w. -]{0,30}=|$)")


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
    """Check for 8 characters of so many kinds: small letters, capitals, digits, signs."""
    return len(value) >= 8 and sum(bool(re.search(form, value)) for form in _STRONG) >= kinds


def is_placeholder(value: str) -> bool:
    """Check for what stands in a secret's place: `<password>`, `$TOKEN`, `********`, a path, a call."""
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
        if character in _OPEN and character != "“":
            depth += 1
        elif character in _CLOSED:
            depth -= 1
            if depth < 0 and not value[place + 1 : place + 2].isalnum():
                value = value[:place]
                break
    return value.rstrip("\"'`,;|")


def first_field(value: str) -> str:
    """Cut `x;Encrypt=true` and `x,user=y` behind the x."""
    return _NEXT_FIELD.split(value, maxsplit=1)[0]


def line_before(text: str, place: int) -> str:
    """Return the line up to a position, of which 200 characters are enough."""
    reach = max(0, place - 200)
    return text[max(reach, text.rfind("\n", reach, place) + 1) : place]


KEY, PRIVATE_KEY, TOKEN, PASSWORD, CARD, IBAN = "api key", "private key", "token", "password", "card number", "iban"
PIN, CODE, SEED = "pin", "recovery code", "seed phrase"

_HEX, _ALNUM, _URL64, _B64 = "[0-9a-f]", "[A-Za-z0-9]", "[A-Za-z0-9_-]", "[A-Za-z0-9+/]"
_BASE58 = "[1-9A-HJ-NP-Za-km-z]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_CAPITALS = (  # and no IBAN
    "(?<!-)(?=[A-Z0-9-]{0,28}[0-9])(?=[A-Z0-9-]{0,28}[A-Z])(?![A-Z]{2}[0-9]{2}-[A-Z0-9]{4}-[0-9]{4}-[0-9])"
)
_HAS_DIGIT = rf"(?={_URL64}{{0,250}}?[0-9])"

# Published formats, as (provider, pattern). A token is at least 16 characters without a space, with no letter or digit
# on either side.
PROVIDERS = (
    ("1Password", r"ops_eyJ[A-Za-z0-9+/=_-]{100,2000}|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{5,11}-){3,5}[A-Z0-9]{5}"),
    ("Adafruit", rf"aio_{_ALNUM}{{28}}"),
    ("Adobe", rf"p8e-{_ALNUM}{{32}}"),
    ("Adyen", rf"AQE{_B64}{{80,200}}={{0,2}}"),
    ("age", r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
    ("Airtable", rf"pat{_ALNUM}{{14}}\.{_HEX}{{64}}"),
    ("Alibaba Cloud", rf"LTAI{_ALNUM}{{12,20}}"),
    ("Artifactory", rf"AKCp{_ALNUM}{{66,73}}|cmVmd{_ALNUM}{{59}}"),
    ("Asana", rf"[01]/[0-9]{{16}}(?:/[0-9]{{16}})?:{_HEX}{{32}}"),
    ("Atlassian", r"AT[AC]TT3[A-Za-z0-9_=+-]{60,250}"),
    ("AWS", rf"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}|ABSK{_B64}{{100,270}}={{0,2}}"),
    ("Azure", rf"(?:AccountKey|SharedAccessKey)={_B64}{{40,90}}={{0,2}}"),
    ("Azure Entra ID", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"),
    ("Bitbucket", rf"ATBB{_ALNUM}{{32}}"),
    ("Bitcoin", rf"[xyz]prv{_BASE58}{{100,112}}|[5KL](?={_BASE58}{{0,40}}[1-9]){_BASE58}{{50,51}}"),
    ("Bot of Discord", rf"[MNO]{_URL64}{{23,25}}\.{_URL64}{{6}}\.{_URL64}{{27,38}}"),
    ("Bot of Telegram", rf"[0-9]{{8,10}}:AA{_URL64}{{33}}"),
    ("Braintree", rf"access_token\$(?:production|sandbox)\$[a-z0-9]{{16}}\${_HEX}{{32}}"),
    ("Brevo", rf"x(?:keysib|smtpsib)-{_HEX}{{64}}-{_ALNUM}{{16}}"),
    ("Buildkite", rf"bk[a-z]{{2}}_{_HEX}{{40}}"),
    ("crates.io", rf"cio{_HAS_DIGIT}{_ALNUM}{{32}}"),
    ("DeepL", rf"{_UUID}:fx"),
    ("Firebase", rf"{_URL64}{{11,22}}:APA91b{_URL64}{{120,160}}"),
    ("CircleCI", rf"CCIPAT_{_ALNUM}{{22}}_{_HEX}{{40}}"),
    ("Clojars", r"CLOJARS_[a-z0-9]{60}"),
    ("Cloudflare", rf"v1\.0-{_HEX}{{24}}-{_HEX}{{140,150}}|cf(?:ut|at|k)_{_ALNUM}{{40,60}}"),
    ("Contentful", rf"CFPAT-{_URL64}{{43}}"),
    ("Databricks", rf"dapi{_HEX}{{32}}(?:-[0-9])?"),
    ("Databricks OAuth", rf"dose{_HEX}{{32}}"),
    ("DigitalOcean", rf"do[opr]_v1_{_HEX}{{64}}"),
    ("Docker", rf"dckr_[po]at_{_URL64}{{20,64}}"),
    ("Doppler", rf"dp\.[a-z]{{2,5}}\.(?:[a-z0-9_-]{{2,35}}\.)?{_ALNUM}{{40,44}}"),
    ("Dropbox", rf"sl\.(?:u\.)?{_URL64}{{100,1500}}"),
    ("Dynatrace", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{8,24}\.[A-Z0-9]{64}"),
    ("EasyPost", rf"EZ[AT]K{_ALNUM}{{54}}"),
    ("Elastic", r"essu_[A-Za-z0-9+/=]{40,120}"),
    ("Facebook", rf"EAA[A-Z]{_ALNUM}{{80,400}}"),
    ("Figma", rf"fig[dor]h?_{_URL64}{{36,64}}"),
    ("Fireworks", rf"fw_{_ALNUM}{{22,40}}"),
    ("Flutterwave", rf"FLWSECK(?:_TEST)?-{_ALNUM}{{12,40}}(?:-X)?"),
    ("Fly", rf"fo1_{_URL64}{{43}}|fm[12][ar]?_[A-Za-z0-9+/=_-]{{80,3000}}"),
    ("GitHub", rf"gh[pousr]_{_ALNUM}{{36,255}}|github_pat_[A-Za-z0-9_]{{22,255}}"),
    ("GitLab", rf"gl(?:pat|rt|dt|cbt|ptt|soat|ft|imt|agent|oas|ffct)-{_URL64}{{20,64}}(?:\.[a-z0-9.]{{8,20}})?"),
    ("Google", rf"AIza{_URL64}{{35}}|GOCSPX-{_URL64}{{28}}|ya29\.{_URL64}{{20,1024}}|1//0{_URL64}{{40,120}}"),
    ("Grafana", rf"gl(?:sa|c)_[A-Za-z0-9+/_]{{32,400}}={{0,2}}|eyJrIjoi{_ALNUM}{{40,400}}={{0,3}}"),
    ("Groq", rf"gsk_{_ALNUM}{{40,64}}"),
    ("Heroku", rf"HRKU-(?:AA{_URL64}{{40,70}}|{_UUID})"),
    ("Hook of Discord", r"discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]{20,255}"),
    ("Hook of Slack", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{20,255}"),
    ("Hook of Teams", r"(?:[a-z0-9-]{1,60}\.webhook|outlook)\.office\.com/webhookb?2?/[A-Za-z0-9@/_-]{40,300}"),
    ("Hook of Zapier", r"hooks\.zapier\.com/hooks/catch/[0-9]{4,12}/[a-z0-9]{5,20}"),
    ("HubSpot", rf"pat-[a-z]{{2}}[0-9]-{_UUID}"),
    ("Hugging Face", rf"hf_{_ALNUM}{{30,64}}|api_org_{_ALNUM}{{34}}"),
    ("Infracost", rf"ico-{_ALNUM}{{32}}"),
    ("LangSmith", rf"lsv2_[a-z]{{2}}_{_HEX}{{32}}_{_HEX}{{10}}"),
    ("LaunchDarkly", rf"(?:sdk|mob|api)-{_UUID}"),
    ("Licence", rf"{_CAPITALS}[A-Z0-9]{{4,6}}(?:-[A-Z0-9]{{4,6}}){{3,7}}(?!-)"),
    ("Linear", rf"lin_(?:api|oauth|wh)_{_ALNUM}{{32,64}}"),
    ("Mailchimp", rf"{_HEX}{{32}}-us[0-9]{{1,2}}"),
    ("Mailgun", rf"(?:key|pubkey)-{_HEX}{{32}}|{_HEX}{{32}}-{_HEX}{{8}}-{_HEX}{{8}}"),
    ("Mapbox", rf"[st]k\.eyJ{_URL64}{{20,400}}\.{_URL64}{{20,40}}"),
    ("Matrix", rf"syt_[A-Za-z0-9+/=]{{1,120}}_{_ALNUM}{{20}}_{_ALNUM}{{6}}"),
    ("MaxMind", rf"{_ALNUM}{{6}}_{_ALNUM}{{29}}_mmk"),
    ("Mollie", rf"(?:live|test)_{_HAS_DIGIT}{_URL64}{{30,42}}"),
    ("MongoDB Atlas", rf"mdb_sa_sk_{_URL64}{{30,60}}"),
    ("Netlify", rf"nf[a-z]_{_ALNUM}{{36,40}}"),
    ("New Relic", rf"NRAK-[A-Z0-9]{{27}}|NR(?:JS|II|IQ|BR|RA|AA)-{_URL64}{{19,40}}|{_HEX}{{36}}NRAL"),
    ("ngrok", rf"2{_ALNUM}{{26}}_{_ALNUM}{{20,22}}"),
    ("Nostr", r"nsec1[02-9ac-hj-np-z]{58}"),
    ("Notion", rf"(?:secret|ntn)_{_ALNUM}{{40,50}}"),
    ("npm", rf"npm_{_ALNUM}{{36}}"),
    ("NuGet", r"oy2[a-z0-9]{43}"),
    ("NVIDIA", rf"nvapi-{_URL64}{{50,80}}"),
    ("Octopus Deploy", r"API-[A-Z0-9]{26,32}"),
    ("Okta", rf"00(?=[^A-Z]{{0,40}}[A-Z])(?=[^a-z]{{0,40}}[a-z]){_URL64}{{40}}"),
    ("OpenAI, Anthropic and others", rf"sk-(?=[A-Za-z_-]{{0,250}}[0-9]){_URL64}{{20,250}}"),
    ("OpenShift", rf"sha256~{_URL64}{{43}}"),
    ("PASETO", rf"v[1-4]\.(?:local|public)\.{_URL64}{{40,2000}}(?:\.{_URL64}{{1,200}})?"),
    ("PayPal", rf"A21AA{_URL64}{{80,120}}"),
    ("Perplexity", rf"pplx-{_ALNUM}{{32,64}}"),
    ("Pinecone", r"pcsk_[A-Za-z0-9_]{50,90}"),
    ("Plaid", rf"access-(?:sandbox|development|production)-{_UUID}"),
    ("PlanetScale", r"pscale_[a-z]{2,8}_[A-Za-z0-9_=.-]{32,64}"),
    ("PostHog", rf"ph[xs]_{_ALNUM}{{40,60}}"),
    ("Postman", rf"PMAK-{_HEX}{{24}}-{_HEX}{{34}}"),
    ("Prefect", r"pn[ub]_[a-z0-9]{36}"),
    ("Pulumi", rf"pul-{_HEX}{{40}}"),
    ("PyPI", rf"pypi-{_URL64}{{50,400}}"),
    ("RapidAPI", rf"{_HEX}{{10}}msh{_HEX}{{15}}p1{_HEX}{{6}}jsn{_HEX}{{12}}"),
    ("Razorpay", rf"rzp_(?:live|test)_{_ALNUM}{{14,30}}"),
    ("ReadMe", r"rdme_[a-z0-9]{70}"),
    ("Recovery key of BitLocker", r"[0-9]{6}(?:-[0-9]{6}){7}"),
    ("Render", rf"rnd_{_ALNUM}{{28,40}}"),
    ("Replicate", rf"r8_{_ALNUM}{{30,64}}"),
    ("Resend", rf"re_{_ALNUM}{{8}}_{_ALNUM}{{24}}"),
    ("RubyGems", rf"rubygems_{_HEX}{{48}}"),
    ("Scalingo", rf"tk-us-{_URL64}{{48}}"),
    ("SendGrid", rf"SG\.{_URL64}{{16,32}}\.{_URL64}{{16,64}}"),
    ("Sentry", rf"sntry[su]_[A-Za-z0-9+/=_-]{{40,400}}|(?<=://){_HEX}{{32}}(?=@[a-z0-9.]{{0,40}}sentry)"),
    ("Shippo", rf"shippo_(?:live|test)_{_HEX}{{40}}"),
    ("Shopify", r"shp[a-z]{2,3}_[0-9a-fA-F]{32}"),
    ("Slack", r"xox[abceoprsd](?:\.xox[a-z])?-[A-Za-z0-9-]{10,255}|xapp-[0-9]-[A-Za-z0-9-]{10,255}"),
    ("Sonar", rf"sq[upa]_{_HEX}{{40}}"),
    ("Sourcegraph", rf"sgp_(?:[a-z0-9]{{5,16}}_)?{_HEX}{{40}}|slk_{_HEX}{{64}}"),
    ("Square", rf"sq0[a-z]{{3}}-{_URL64}{{22,43}}|EAAA{_URL64}{{60}}"),
    ("Stripe", rf"[rs]k_(?:live|test|prod)_{_ALNUM}{{10,255}}|whsec_[A-Za-z0-9+/=]{{24,88}}"),
    ("Supabase", rf"sbp_{_HEX}{{40}}|sb_secret_{_URL64}{{20,60}}"),
    ("Tailscale", rf"tskey-(?:[a-z]{{2,12}}-)?{_ALNUM}{{8,24}}(?:-{_ALNUM}{{10,48}})?"),
    ("Tavily", rf"tvly-{_URL64}{{20,60}}"),
    ("Terraform Cloud", rf"{_ALNUM}{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{60,70}}"),
    ("Twilio", rf"SK{_HEX}{{32}}"),
    ("Typeform", r"tfp_[A-Za-z0-9_.=-]{40,64}"),
    ("Vault", rf"hv[sbr]\.{_URL64}{{20,300}}|s\.{_HAS_DIGIT}{_ALNUM}{{24}}"),
    ("Vercel", rf"vc[a-z]_{_ALNUM}{{24,64}}|vercel_blob_rw_[A-Za-z0-9_]{{30,70}}"),
    ("Voyage", rf"pa-{_HAS_DIGIT}{_URL64}{{43}}"),
    ("WakaTime", rf"waka_{_UUID}"),
    ("WooCommerce", rf"c[ks]_{_HEX}{{40}}"),
    ("xAI", rf"xai-{_ALNUM}{{40,100}}"),
    ("Yandex", rf"AQVN{_URL64}{{35,38}}|y0_{_URL64}{{50,80}}"),
    ("Zoho", rf"1000\.{_HEX}{{32}}\.{_HEX}{{32}}"),
)

# Names of secrets. Each may end a longer one: DB_PASSWORD, dbPassword, Routerpasswort. A name is searched for by its
# anchor: it begins there, and looks behind for what stands before. Anchors begin with the rarer letters of their names,
# which halves the time of the search.
PASSWORD_NAMES = (
    "(?<!no)passw(?:or)?[dt]|passphrase|passcode|passord|(?<=mot de )passe|(?<=palavra[- ])passe"
    "|(?<=require)pass|(?<=store)pass|(?<=key)pass|(?<=p)wd|kennwort|(?<=wacht)woord|contrase[ñn]a|(?<=adgangs)kode"
    "|kodeord|(?<=l)ösenord|senha|пароль|(?<=ps)k|parola d['\u2019]ordine|(?<=sungs|eheim)wort"
    "|phrase secr[èe]te"
)
SHORT_PASSWORD_NAMES = (  # words of other uses, too
    r"(?<![^\W_])(?:pass|mdp)|(?<![^\W_]p)(?<=p)w|(?<![^\W_]w)(?<=w)w|(?<![^\W_]ps)(?<=ps)w|(?<=cla)ve"
)
KEY_NAMES = "(?<=se)cret(?:[ _-]?(?:access)?[ _-]?key)?|(?<=se)creto|(?<=se)gre[td]o|geheimnis|(?<=to)ken|jeton"
# Key, and what it is in other languages, says little without a word such as API in front of it.
PLAIN_KEY_NAMES = (
    "key|(?<=cha)ve|(?<=chia)ve|clé|(?<=schl)üssel|(?<=sle)utel"
    r"|seed|(?<=a)ppid(?==)|(?<=a)uth|(?<=si)g(?:nature)?(?==)|(?<![^\W_])(?:wi-?fi|wlan)"
)
NAME = (
    rf"(?i)(?:(?P<password>{PASSWORD_NAMES})|(?P<short>{SHORT_PASSWORD_NAMES})|(?P<key>{KEY_NAMES})"
    rf"|(?P<plain>{PLAIN_KEY_NAMES}))(?![^\W_])(?:_\w{{1,30}}+)?+"
)
KEY_KINDS = (
    "api|access|auth|account|encryption|signing|master|private|preshared|pre-shared|shared|secret|licen[cs]e|wpa2?"
    "|wi-?fi|wlan|network|session|deploy|service|admin|netzwerk|zugriffs|zugangs|lizenz|geheime[rn]?|toegangs"
    "|authenticator|acc[eè]s\\w*|acesso|s[eé][cg]u\\w+|sicurezza|licen\\w+|secr\\w+|segret\\w|r[ée]seau|rede?|rete"
    "|modem|router|vpn"
)
ANCHORS = (
    r"b(?:earer |ox(?<=lockbox))|c(?:o(?:de|di[cg]|mbina|mbo\b|ntrase)|lé|ódig|r(?:ed|et(?<=secret)|yptogramme)|hloss"
    r"|a(?:den|ndad|dead)[ao]|chetto|ijferslot)|f(?:i(?<=identifi)(?:ant|ed )|ra(?:ge(?<=sfrage)|se ))|g(?:e(?:heimnis"
    r"|gevens)|-?in(?<=login|og-in)|re[td]o|slot|(?<=sig)(?:nature)?(?==))|jeton|k(?:e(?:ypad|y ?safe|y|nnwort"
    r"|n(?<=token))|ode|ombina|luis|ie:|(?<=psk)|(?<=unlock))|m(?:dp|in(?= ?[/:])|nemonic|emorable w|eldedaten|anda seg"
    r"|(?<=isarm))|p(?:pid=|a(?:dlock|ss|rola d)|hrase|in(?![abd-mo-z])|rüfziffer|onse sec|uesta se|osta se|(?:re"
    r"|er)gunta )|question(?: sec|(?<=[yt] question))|u(?:th(?<=auth)|tel(?<=sleutel)|k(?<=puk)|nscharf)|üssel(?:box"
    r"|safe|tresor)?|v(?:e(?<=clave|chave|hiave)|[vc](?<=cv[vc])|[ea]r(?<=activ[ea]r)|are(?<=attivare)|raag)"
    r"|w(?:oor(?:d(?<=twoord)|den)|ort(?<=swort|mwort)|i-?fi|lan|ords(?<=[24] words)|örter|er(?<=[yt] answer)|(?<=pw)"
    r"|(?<=psw)|(?<=ww)(?![\w.]))|z(?:ugang|ahl(?<=heimzahl)|in(?<=stelzin))|ösenord"
)
OTHER_ANCHORS = ("senha", "пароль", "seed", "tan ")  # without a rare letter, or of no other use
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
    "(?<=lo)g-?in|credentials?|creds|zugang(?:sdaten)?|(?<=an)meldedaten|(?<=identi)fiants?|credenciales|credenciais"
    "|credenziali|(?<=inlog)gegevens|(?<=user/|name/)pass(?:wor[dt])?"
)
PIN_NAMES = (  # behind these a number is a secret, whatever else the line says
    r"(?:(?<![^\W_])(?:PIN|Pin)|(?<=C)V[VC]2?|(?<=P)UK|(?<![^\W_])TAN|(?<=eheim)zahl|[Cc]ryptogramme|[Pp]rüfziffer)"
    r"(?:[ -]?(?:[12](?=:)|code|Code|nummer|Nummer|number|Nr\.?))?"
)
CODE_WORDS = (  # behind these it is one where the line says what it opens
    r"codes?|c[óo]d(?:igo|ice)|pin(?:[ -]?code)?|[ck]ombina(?:tion|ci[óo]n|[çc][ãa]o|zione|ison|tie)|combo|(?<=unloc)k"
    r"|keypad|(?<=lock)box|padlock|key ?safe|(?<=s)chloss|cadenas|candado|cadeado|(?<=lu)cchetto|cijferslot"
    r"|(?<=han)gslot|kluis(?:je)?|(?<=schl)üssel(?:box|safe|tresor)|(?<=cla)ve|senha|(?<=disar)m|(?<=acti)v[ea]r"
    r"|(?<=atti)vare|unscharf"
)
OPENED = (
    r"door|gate\b|garage|alarm|safe\b|locke?r?\b|pad ?lock|lockbox|keypad|key ?safe|\bentry|access|unlock|security"
    r"|\bcards?\b|credit|debit|\batm\b|\bbank|\bsim\b|voicemail|radio|wi-?fi|wlan|tür|\btor\b|tresor|schloss"
    r"|schlüssel|karte"
    r"|zugang|sperr|sicherheit|konto|porte\b|portail|immeuble|entrée|bâtiment|accès|coffre|cadenas|carte|\bcb\b|secret"
    r"|confidentiel|verrouill|digicode|interphone|puerta|portal|garaje|caja|cajero|tarjeta|acceso|candado|seguridad"
    r"|bloqueo|móvil|\bport[aãeo]|prédio|cofre|cartão|acesso|garagem|cadeado|segurança|celular|cancell|cassaforte"
    r"|allarme|antifurto|\bcarta|bancomat|accesso|sblocc|lucchetto|segret|deur|poort|kluis|slot\b|\bpas\b|kaart|toegang"
    r"|grendel|inlog|disarm|désactiv|unscharf|disattiv|desactiv|passnumber|multibanco|tür|(?<=unter)schließ|\bbox\b"
    r"|schlüsselbox|fiets"
)
DIALLING_VERBS = "opens with|uses|use|enter|type|press|dial|mit|taper|composer|marcar|digitare|digitar|met|avec|con|com"
CODE_KINDS = (  # in front of "code" or "codes"
    "recovery|back-?up|scratch|emergency|rescue|sicherungs?|2fa|one-time|wiederherstellungs?|notfall|ersatz|herstel"
    "|reserve|einmal|activation"
)
CODE_NAMES = (
    "codes? de (?:r[ée]cup[ée]ration|secours|sauvegarde)"
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
