"""The labelled examples of files, for tests: as tasks read them whose reading no setting of a run decides."""

from functools import partial

from asterism.training.tasks.kinds.answering import ANSWERING
from asterism.training.tasks.kinds.classification import CLASSIFICATION
from asterism.training.tasks.kinds.tagging import TAGGING
from asterism.training.tasks.task import Kind


def read_examples(kind: Kind, path):
    """All of a file."""
    return kind.examples.read(path, None)


read_documents = partial(read_examples, CLASSIFICATION)
read_tagged = partial(read_examples, TAGGING)
read_questions = partial(read_examples, ANSWERING)
