"""How a chat is put to the model, as a Jinja template: what transformers and llama.cpp know a model's chats by.

They render a chat to text and then encode the text, chat tokens included. Our own prompt encodes what people wrote by
itself, so that a chat token's name in it is plain text; a template cannot, and refuses such a message.
"""

from __future__ import annotations

from niels_gpt.chat_format import PROMPT, ROLES
from niels_gpt.config import Renderer
from niels_gpt.tokenizer.vocabulary import SPECIAL_TOKENS

_CHECKS = """\
{%- for message in messages -%}
  {%- if message['role'] not in ROLES or message['content'] is not string -%}
    {{- raise_exception('a message needs a role of ROLES and a string content') -}}
  {%- endif -%}
  {%- for name in SPECIAL_TOKENS -%}
    {%- if name in message['content'] -%}
      {{- raise_exception('a message holds the name of a chat token, which would be read as one: take it out') -}}
    {%- endif -%}
  {%- endfor -%}
{%- endfor -%}
"""
_CHAT_TOKENS = """\
{%- set tags = TAGS -%}
{%- for message in messages -%}
  {{- tags[message['role']] + message['content'] + 'EOT' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- tags['assistant'] -}}
{%- endif -%}
"""
# A last turn of the assistant without content is the prompt itself: its tag is not written twice.
_TRANSCRIPT = """\
{%- for message in messages -%}
  {%- if not (loop.last and message['role'] == 'assistant' and message['content'] == '' and add_generation_prompt) -%}
    {{- message['role'] + ': ' + message['content'] + '\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- 'PROMPT' -}}
{%- endif -%}
"""


def jinja_template(renderer: Renderer) -> str:
    """With `add_generation_prompt`, what `Talker.prompt` says."""
    *roles, eot = SPECIAL_TOKENS
    template = _CHECKS + (_CHAT_TOKENS if renderer == "chat_tokens" else _TRANSCRIPT)
    for word, value in {
        "a role of ROLES": f"a role of {', '.join(ROLES)}",
        "ROLES": str(list(ROLES)),
        "SPECIAL_TOKENS": str(list(SPECIAL_TOKENS)),
        "TAGS": str(dict(zip(ROLES, roles, strict=True))),
        "EOT": eot,
        "PROMPT": PROMPT,
    }.items():
        template = template.replace(word, value)
    return template
