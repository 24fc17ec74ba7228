"""Secrets to plant in texts. None is anybody's: they are sampled with a fixed seed, or printed in standards.

Keys are assembled here, because whole ones in a repository set off its host's alarms. `FORMS` contains all of them as
they would appear in notes in seven languages.
"""

import base64
import random
import string

_RNG = random.Random(12)
_ALNUM = string.ascii_letters + string.digits


def drawn(n: int, alphabet: str = _ALNUM) -> str:
    return "".join(_RNG.choice(alphabet) for _ in range(n))


def _url64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


_HEX, _UPPER = string.digits + "abcdef", string.ascii_uppercase + string.digits
_BASE58 = "".join(sorted(set(_ALNUM) - set("0OIl")))


def _uuid() -> str:
    return "-".join(drawn(n, _HEX) for n in (8, 4, 4, 4, 12))


KEYS = {
    "AWS": "AKIA" + drawn(16, string.ascii_uppercase + "234567"),
    "GitHub": "ghp_" + drawn(36),
    "a fine-grained one of GitHub": "github_pat_" + drawn(22) + "_" + drawn(59),
    "GitLab": "glpat-" + drawn(20),
    "Slack": f"xoxb-{drawn(12, string.digits)}-{drawn(12, string.digits)}-{drawn(24)}",
    "a hook of Slack": f"hooks.slack.com/services/T{drawn(8)}/B{drawn(8)}/{drawn(24)}",
    "Stripe": "sk_" + "live_" + drawn(24),
    "Google": "AIza" + drawn(35),
    "OpenAI": "sk-" + drawn(20) + "T3BlbkFJ" + drawn(20),
    "OpenAI by project": "sk-proj-" + drawn(60),
    "Anthropic": "sk-ant-api03-" + drawn(90) + "AA",
    "Hugging Face": "hf_" + drawn(34),
    "npm": "npm_" + drawn(36),
    "SendGrid": "SG." + drawn(22) + "." + drawn(43),
    "Telegram": drawn(9, "123456789") + ":AA" + drawn(33),
    "Azure": "AccountKey=" + drawn(86) + "==",
    "age": "AGE-SECRET-KEY-1" + drawn(58, _UPPER),
    "Airtable": "pat" + drawn(14) + "." + drawn(64, _HEX),
    "Alibaba": "LTAI" + drawn(20),
    "Asana": "1/" + drawn(16, string.digits) + ":" + drawn(32, _HEX),
    "Atlassian": "ATATT3" + drawn(180),
    "Azure Entra": drawn(3) + "8Q~" + drawn(34),
    "Bitbucket": "ATBB" + drawn(32),
    "Bitcoin": "xprv" + drawn(107, _BASE58),
    "Brevo": "xkeysib-" + drawn(64, _HEX) + "-" + drawn(16),
    "Buildkite": "bkua_" + drawn(40, _HEX),
    "CircleCI": "CCIPAT_" + drawn(22) + "_" + drawn(40, _HEX),
    "Contentful": "CFPAT-" + drawn(43),
    "Databricks": "dapi" + drawn(32, _HEX),
    "DigitalOcean": "dop_v1_" + drawn(64, _HEX),
    "Discord": "M" + drawn(24) + "." + drawn(6) + "." + drawn(30),
    "a hook of Discord": f"discord.com/api/webhooks/{drawn(18, string.digits)}/{drawn(60)}",
    "Docker": "dckr_pat_" + drawn(27),
    "Doppler": "dp.pt." + drawn(43),
    "Dropbox": "sl.u." + drawn(130),
    "Dynatrace": "dt0c01." + drawn(24, _UPPER) + "." + drawn(64, _UPPER),
    "Figma": "figd_" + drawn(40),
    "Fly": "fo1_" + drawn(43),
    "Grafana": "glsa_" + drawn(32) + "_" + drawn(8, _HEX),
    "Grafana Cloud": "glc_" + drawn(60),
    "Groq": "gsk_" + drawn(52),
    "Heroku": "HRKU-" + _uuid(),
    "HubSpot": "pat-na1-" + _uuid(),
    "LangSmith": "lsv2_pt_" + drawn(32, _HEX) + "_" + drawn(10, _HEX),
    "LaunchDarkly": "sdk-" + _uuid(),
    "Linear": "lin_api_" + drawn(40),
    "Mailchimp": drawn(32, _HEX) + "-us12",
    "Mailgun": "key-" + drawn(32, _HEX),
    "Mapbox": "sk.eyJ" + drawn(60) + "." + drawn(22),
    "Matrix": "syt_" + drawn(10) + "_" + drawn(20) + "_" + drawn(6),
    "Netlify": "nfp_" + drawn(40),
    "New Relic": "NRAK-" + drawn(27, _UPPER),
    "Notion": "ntn_" + drawn(46),
    "NuGet": "oy2" + drawn(43, string.ascii_lowercase + string.digits),
    "NVIDIA": "nvapi-" + drawn(64),
    "Perplexity": "pplx-" + drawn(48),
    "PlanetScale": "pscale_tkn_" + drawn(43),
    "Postman": "PMAK-" + drawn(24, _HEX) + "-" + drawn(34, _HEX),
    "Pulumi": "pul-" + drawn(40, _HEX),
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + drawn(80),
    "Replicate": "r8_" + drawn(37),
    "Resend": "re_" + drawn(8) + "_" + drawn(24),
    "RubyGems": "rubygems_" + drawn(48, _HEX),
    "Sentry": "sntryu_" + drawn(64, _HEX),
    "Shopify": "shpat_" + drawn(32, _HEX),
    "Sonar": "squ_" + drawn(40, _HEX),
    "Square": "sq0csp-" + drawn(43),
    "Supabase": "sbp_" + drawn(40, _HEX),
    "Tailscale": "tskey-auth-" + drawn(12) + "-" + drawn(32),
    "Terraform": drawn(14) + ".atlasv1." + drawn(67),
    "Twilio": "SK" + drawn(32, _HEX),
    "Vault": "hvs." + drawn(90),
    "Vercel": "vcp_" + drawn(56),
    "xAI": "xai-" + drawn(80),
    "Zoho": "1000." + drawn(32, _HEX) + "." + drawn(32, _HEX),
    "BitLocker": "-".join(drawn(6, string.digits) for _ in range(8)),
    "a licence": "-".join(drawn(4, _UPPER) + "7" for _ in range(5)),
    "somebody not in the table": "acme_" + drawn(12) + "7aB" + drawn(20),
}
JWT = ".".join([_url64('{"alg":"HS256","typ":"JWT"}'), _url64('{"sub":"1234567890","name":"x"}'), drawn(43)])
CARDS = (
    *("4111111111111111", "4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "3782 822463 10005"),
    *("6011\u00a01111\u00a01111\u00a01117", "3056 930902 5904", "3530111333300000", "2223003122003222"),
)
IBANS = (
    *("DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "GB29 NWBK 6016 1331 9268 19", "NO9386011117947"),
    *("DK50\u00a00040\u00a00440\u00a01162\u00a043", "FR1420041010050500013M02606", "gb29nwbk60161331926819"),
    "MT84-MALT-0110-0001-2345-MTLC-AST0-01S",
)
PASSWORD = "Tr0ub4dor&3"


def pem(kind: str = "RSA ", *, line_end: str = "\n", end: bool = True) -> str:
    body = base64.b64encode(_RNG.randbytes(901)).decode()
    lines = [body[i : i + 64] for i in range(0, len(body), 64)]
    foot = [f"-----END {kind}PRIVATE KEY-----"] if end else []
    return line_end.join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, *foot])


# Forms by kind; those with words are in English, German, French, Spanish, Portuguese, Italian and Dutch.
_TOKEN, _SECRET = drawn(20) + "4kQ7z" + drawn(15), drawn(18) + "9x/K2" + drawn(17)
_CODES = tuple(f"{drawn(4, _HEX)}7-{drawn(4, _HEX)}3" for _ in range(6))
LANGUAGES = ("en", "de", "fr", "es", "pt", "it", "nl")
SAID: dict[str, tuple[str, ...]] = {
    "password:": (
        *("Password: {}", "Passwort: {}", "Mot de passe : {}", "Contraseña: {}", "Senha: {}", "Parola d'ordine: {}"),
        "Wachtwoord: {}",
    ),
    "password in a sentence": (
        "The password is {}, do not tell.",
        "Das Passwort ist {}, nicht weitersagen.",
        "Le mot de passe est {}, ne le dis pas.",
        "La contraseña es {}, no la digas.",
        "A senha é {}, não conte.",
        "La password è {}, non dirla.",
        "Het wachtwoord is {}, niet doorvertellen.",
    ),
    "password of a thing": (
        "the password for the router is {}.",
        "das Kennwort für den Router lautet {}.",
        "le mot de passe du wifi est {}.",
        "la contraseña del router es {}.",
        "a senha do roteador é {}.",
        "la password del portale è {}.",
        "het wachtwoord van de router is {}.",
    ),
    "password of now": (
        "My password is now {}",
        "Mein Passwort ist jetzt {}",
        "Mon mot de passe est maintenant {}",
        "Mi contraseña es ahora {}",
        "Minha senha agora é {}",
        "La mia password ora è {}",
        "Mijn wachtwoord is nu {}",
    ),
    "password below": (
        *("Password:\n{}", "Passwort:\n\n{}\n", "Mot de passe :\n{}", "Contraseña:\n  {}", "Senha:\n- {}"),
        *("Password:\r\n{}", "Wachtwoord:\n{}"),
    ),
    "password changed": (
        "I changed the password to {} yesterday.",
        "Ich habe das Passwort auf {} geändert.",
        "J'ai changé le mot de passe en {} hier.",
        "Cambié la contraseña a {} ayer.",
        "Mudei a senha para {} ontem.",
        "Ho cambiato la password in {} ieri.",
        "Ik heb het wachtwoord veranderd in {} gisteren.",
    ),
    "password last": (
        "Use {} as the password.",
        "Nimm {} als Passwort.",
        "Utilise {} comme mot de passe.",
        "Usa {} como contraseña.",
        "Use {} como senha.",
        "Usa {} come password.",
        "Gebruik {} als wachtwoord.",
    ),
    "login": (
        *("Login: anna / {}", "Zugangsdaten: anna / {}", "Identifiants : anna / {}", "Credenciales: anna / {}"),
        *("Credenciais: anna / {}", "Credenziali: anna / {}", "Inloggegevens: anna / {}"),
    ),
    "user and password": (
        "user: anna, password: {}",
        "Benutzer: anna, Passwort: {}",
        "utilisateur : anna, mot de passe : {}",
        "usuario: anna, contraseña: {}",
        "usuário: anna, senha: {}",
        "utente: anna, password: {}",
        "gebruiker: anna, wachtwoord: {}",
    ),
    "api key": (
        *("API key: {t}", "API-Schlüssel: {t}", "Clé API : {t}", "Clave API: {t}", "Chave de API: {t}"),
        *("Chiave API: {t}", "API-sleutel: {t}"),
    ),
    "key of a network": (
        *("Wi-Fi key: {t}", "WLAN-Schlüssel: {t}", "Clé du wifi : {t}", "Clave del wifi: {t}", "Chave do wi-fi: {t}"),
        *("Chiave del wifi: {t}", "Wifi-sleutel: {t}"),
    ),
    "access token": (
        "the access token is {t}",
        "das Zugriffstoken lautet {t}",
        "le jeton d'accès est {t}",
        "el token de acceso es {t}",
        "o token de acesso é {t}",
        "il token di accesso è {t}",
        "het toegangstoken is {t}",
    ),
    "token without a sign": (
        "Twilio auth token {t}",
        "Twilio Token {t}",
        "jeton Twilio {t}",
        "token de Twilio {t}",
        "token da Twilio {t}",
        "token di Twilio {t}",
        "Twilio-token {t}",
    ),
    "secret access key": (
        "the secret access key for the backup bucket is {s}",
        "der geheime Schlüssel für den Bucket lautet {s}",
        "la clé secrète du bucket est {s}",
        "la clave secreta del bucket es {s}",
        "a chave secreta do bucket é {s}",
        "la chiave segreta del bucket è {s}",
        "de geheime sleutel van de bucket is {s}",
    ),
    "recovery codes": (
        "2FA recovery codes:\n{c}",
        "Wiederherstellungscodes:\n{c}",
        "Codes de secours :\n{c}",
        "Códigos de recuperación:\n{c}",
        "Códigos de recuperação:\n{c}",
        "Codici di recupero:\n{c}",
        "Herstelcodes:\n{c}",
    ),
    "PIN": (
        *("PIN: {p}", "Die PIN der Karte ist {p}.", "Le code PIN est {p}.", "El PIN de la tarjeta es {p}."),
        *("O PIN do cartão é {p}.", "Il PIN della carta è {p}.", "De PIN van de kaart is {p}."),
    ),
}
WRITTEN = {  # in code, commands and files, which have no language
    "basic authorization": "Authorization: Basic YW5uYTpUcjB1YjRkb3I=",
    "bearer": "curl -H 'Authorization: Bearer {t}' https://example.org",
    "token header": "Authorization: token {t}",
    "key header": "X-API-Key: {t}",
    "SMTP": "AUTH PLAIN AGFubmEAVHIwdWI0ZG9yJjM=",
    "cookie": "Cookie: theme=dark; sessionid={t}; a=b",
    "curl": "curl -u anna:{} https://example.org",
    "curl, long": "curl --user 'anna:{}' https://example.org",
    "mysql": "mysql -u root -p{} shop",
    "mysqldump": "mysqldump --user=root --password={} shop > x.sql",
    "sshpass": "sshpass -p '{}' ssh anna@example.org",
    "an option": "tool --password {} --verbose",
    "an option with a token": "tool --token {t} --verbose",
    "redis-cli": "redis-cli -h cache -a {} ping",
    "docker": "docker login -u anna -p {} example.org",
    "sudo": "echo '{}' | sudo -S apt update",
    "openssl": "openssl rsa -in a.pem -passin pass:{} -out b.pem",
    "unzip": "unzip -P {} a.zip",
    "7z": "7z x -p{} a.7z",
    "htpasswd": "htpasswd -b .htpasswd anna {}",
    "ldapsearch": "ldapsearch -D cn=anna -w {} -b dc=org",
    "smbclient": "smbclient //nas/x -U anna%{}",
    "keytool": "keytool -list -storepass {} -keystore a.jks",
    "psql": "PGPASSWORD={} psql -h db",
    "netrc": "machine example.org login anna password {}",
    "netrc in lines": "machine example.org\n  login anna\n  password {}\n",
    "wpa_supplicant": 'network={\n  ssid="home"\n  psk="{}"\n}',
    "WiFi as a QR code": "WIFI:T:WPA;S:home;P:{};;",
    "XML": "<user>anna</user><password>{}</password>",
    "app.config": '<add key="ApiKey" value="{t}" />',
    "strings.xml": '<string name="api_key">{t}</string>',
    "connection string": "Server=db;User Id=sa;Password={};Encrypt=true",
    "JDBC": "jdbc:mysql://db/shop?user=anna&password={}&ssl=1",
    "URL": "postgres://anna:{}@db.example.org/shop",
    "environment": "export DB_PASSWORD='{}'",
    "YAML": "db:\n  user: anna\n  password: {}\n",
    "JSON": '{"user": "anna", "password": "{}"}',
    "JSON in JSON": '{"a": "{\\"password\\": \\"{}\\"}"}',
    "ansible": "ansible_become_pass: {}",
    "redis.conf": "requirepass {}",
    "SQL": "CREATE USER 'anna'@'%' IDENTIFIED BY '{}';",
    "PostgreSQL": "ALTER USER anna WITH PASSWORD '{}';",
    "npmrc": "//registry.npmjs.org/:_authToken={t}",
    "docker config": '{"auths": {"example.org": {"auth": "YW5uYTpUcjB1YjRkb3ImMw=="}}}',
    "AWS credentials": "aws_secret_access_key = {s}",
    "Azure SAS": "https://x.blob.core.windows.net/c?sv=2022&sig={t}%3D&se=2",
    "one-time secret": "otpauth://totp/Example:anna?secret=JBSWY3DPEHPK3PXP&issuer=Example",
    "one-time secret in groups": "TOTP secret: JBSW Y3DP EHPK 3PXP",
    "app password": "app password for mail: qwjz ktrm pbfv hxcd",
    "shadow": "anna:$6$" + drawn(8) + "$" + drawn(86) + ":19000:0:99999:7:::",
    "WireGuard": "PrivateKey = " + drawn(42) + "8=",
    "Ethereum": "private key 0x" + drawn(64, _HEX),
    "web token": f"token {JWT}",
    "card": "card 4111 1111 1111 1111",
    "card with dots": "card 4111.1111.1111.1111",
    "IBAN": f"IBAN {IBANS[1]}",
    "private key": pem(),
    "PGP": pem("PGP ").replace("KEY-----", "KEY BLOCK-----"),
    "seed phrase": "wallet: " + "legal winner thank year wave sausage worth useful legal winner thank yellow",
    "numbered seed phrase": "1. letter 2. advice 3. cage 4. absurd 5. amount 6. doctor 7. acoustic 8. avoid 9. letter "
    "10. advice 11. cage 12. above",
    "French seed phrase": "abandon abeille abolir aborder aboutir aboyer abrasif abreuver abriter abroger abrupt "
    "absence",
    "table": "| site | user | password |\n|---|---|---|\n| bank | anna | {} |\n| shop | bert | Wint3r?Kob |",
    "passphrase": 'passphrase: "correct horse battery staple"',
}
_PARTS = {"t": _TOKEN, "s": _SECRET, "c": "\n".join(_CODES), "p": "4821"}
_NEEDLES = {"{}": (PASSWORD,), "{t}": (_TOKEN,), "{s}": (_SECRET,), "{c}": _CODES, "{p}": ("4821",)}
_FIXED = {  # needles of forms without any of these placeholders
    "basic authorization": ("YW5uYTpUcjB1YjRkb3I=",),
    "SMTP": ("AGFubmEAVHIwdWI0ZG9yJjM=",),
    "docker config": ("YW5uYTpUcjB1YjRkb3ImMw==",),
    "one-time secret": ("JBSWY3DPEHPK3PXP",),
    "one-time secret in groups": ("JBSW", "3PXP"),
    "app password": ("qwjz", "hxcd"),
    "card": ("4111",),
    "card with dots": ("4111",),
    "seed phrase": ("winner", "sausage", "yellow"),
    "numbered seed phrase": ("letter", "amount", "above"),
    "French seed phrase": ("abandon", "absence"),
    "passphrase": ("horse", "staple"),
    "IBAN": (IBANS[1],),
    "web token": (JWT,),
}


def _forms() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return (kind, language or "", text, needles): a form is masked when none of its needles is left."""
    found = [(f"key of {name}", "", f"the key: {key}\n", (key,)) for name, key in KEYS.items()]
    said = [
        (kind, language, form) for kind, forms in SAID.items() for language, form in zip(LANGUAGES, forms, strict=True)
    ]
    for kind, language, form in [*said, *((kind, "", form) for kind, form in WRITTEN.items())]:
        text, needles = form.replace("{}", PASSWORD), _FIXED.get(kind, ())
        for mark, part in _PARTS.items():
            text = text.replace(f"{{{mark}}}", part)
        for mark, secrets in _NEEDLES.items():
            needles += secrets if mark in form else ()
        found.append((kind, language, text, needles or (max(text.split(), key=len)[-40:-8],)))
    return found


FORMS = _forms()
