"""A process that answers questions about one model: a line of JSON in, a line of JSON out, until its input ends.

The model is loaded first. Where that is refused, every question gets the refusal.
"""

import sys
from typing import NoReturn

from asterism.explore.subject import Subject
from asterism.explore.worker import answers_on_stdout, refusal_of, serve_lines


def main() -> None:
    """Load the model that the first argument names, and answer."""
    answers = answers_on_stdout()
    # Imported here, with torch and transformers, so that a process that lacks them says why.
    from asterism.explore.model import open_model
    from asterism.explore.model_questions import ModelQuestions

    subject = Subject.from_json(sys.argv[1])
    try:
        answer = ModelQuestions(open_model(subject), subject.text).answer
    except Exception as error:
        refused = error
        print(f"asterism explore: {refusal_of(error)['refused']['message']}", file=sys.stderr, flush=True)

        def answer(given: object) -> NoReturn:
            raise refused

    serve_lines(answers, answer)


if __name__ == "__main__":
    main()
