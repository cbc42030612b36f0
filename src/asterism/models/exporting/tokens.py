"""The tokenizer's files of a model that is exported, each read as what its name says."""

from pathlib import Path

from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from asterism.errors import CheckpointError
from asterism.files import read_bytes
from asterism.models.importing.tokenizer import read_tokenizer

_TEMPLATE = "chat_template.jinja"
_GENERIC = "mistral"
"""A family whose tokenizer is of no class of its own: that of files that name none, of a family that names none."""


def token_files(folder: Path, family: str) -> dict[str, bytes]:
    """The tokenizer's files by their names, none if there are none. Raises CheckpointError for damaged ones."""
    found = read_tokenizer(folder, family if family in TOKENIZER_MAPPING_NAMES else _GENERIC, None)
    template = folder / _TEMPLATE
    if found and template.exists():
        found[_TEMPLATE] = _checked_template(template)
    return found


def _checked_template(path: Path) -> bytes:
    """A template of a chat: a link could lead to any file of the user, so it must be one."""
    from jinja2 import Environment, TemplateSyntaxError

    content = read_bytes(path)
    try:
        text = content.decode()
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except (ValueError, TemplateSyntaxError) as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: it must hold a template of Jinja") from error
    if "messages" not in text:
        raise CheckpointError("damaged-file", f"{path} is damaged: a template of a chat names messages")
    return content
