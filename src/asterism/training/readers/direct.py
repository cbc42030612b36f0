"""Readers that read once from the start: the whole document, or as much as fits into a row."""

from dataclasses import dataclass
from typing import ClassVar

from asterism.errors import ConfigurationError
from asterism.training.readers.reader import Document, Reader, Row


@dataclass(frozen=True)
class Whole(Reader):
    """The whole document in one row. A document that does not fit is refused; nothing is cut."""

    name: ClassVar[str] = "whole"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length is not None:
            raise ConfigurationError(
                "whole-has-no-length",
                f"reader: whole() takes no length, got {self.length}; write cut(length={self.length})",
            )

    def rows(self, document: Document) -> list[Row]:
        return [((0, document.tokens),)]

    def refusal(self, document: Document) -> str | None:
        if document.tokens <= document.room:
            return None
        return (
            f"the document has {document.tokens:,} tokens and a row has place for {document.room:,}, and reader whole()"
            " cuts nothing: give a longer length, if the model takes it, or another reader, such as cut() or windows()"
        )


@dataclass(frozen=True)
class Cut(Reader):
    """The first tokens of the document, as many as fit into a row. The rest is not read."""

    name: ClassVar[str] = "cut"
    cuts: ClassVar[bool] = True

    def rows(self, document: Document) -> list[Row]:
        return [((0, min(document.tokens, document.room)),)]
