"""Names, and the classes that they stand for: a class is imported when it is first asked for.

So a configuration can be checked against the names, and the command line can list them, without importing torch.
"""

from importlib import import_module
from typing import Generic, NamedTuple, NoReturn, TypeVar

from asterism.errors import ConfigurationError, nearest

Class = TypeVar("Class")


class Entry(NamedTuple):
    """One line of a registry.

    place             module and class: "asterism.training.objectives.causal:CausalBytes"
    settings          the settings of a run that it reads and that not all of its kind do
    kind              the kind of run that may name it
    shortest_context  how many tokens a sequence needs at least
    recipe            the recipe that stands for it when none is named
    """

    place: str
    settings: tuple[str, ...] = ()
    kind: str = "train"
    shortest_context: int = 1
    recipe: str = ""


class Registry(dict[str, Entry], Generic[Class]):
    """Entries by name; `load` gives the class of one. Raises ConfigurationError for a name that is not there."""

    def __missing__(self, name: str) -> NoReturn:
        raise ConfigurationError(f"there is no {name!r}.{nearest(name, self)} Known: {', '.join(self)}")

    def load(self, name: str) -> type[Class]:
        """The class called `name`."""
        module, _, attribute = self[name].place.partition(":")
        found: type[Class] = getattr(import_module(module), attribute)
        return found

    def names(self, kind: str) -> list[str]:
        """The names that a kind of run may use."""
        return [name for name, entry in self.items() if entry.kind == kind]

    def readers(self, setting: str) -> list[str]:
        """The names whose classes read a setting that not all of them do."""
        return [name for name, entry in self.items() if setting in entry.settings]

    def foreign(self, name: str) -> list[str]:
        """The settings that others read and `name` does not."""
        return sorted({setting for entry in self.values() for setting in entry.settings} - set(self[name].settings))
