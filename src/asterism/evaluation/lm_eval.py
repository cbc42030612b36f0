"""lm_eval, which knows the model `asterism`, for versions that look for no plugins.

    python -m asterism.evaluation.lm_eval --model asterism --model_args pretrained=FOLDER,pattern=native --tasks TASK

All arguments are those of lm_eval.
"""

import sys

from asterism.errors import AsterismError
from asterism.presence import require_package


def main() -> int:
    """Register the model and run lm_eval. An error of Asterism is one line on stderr, and its exit code returned."""
    try:
        require_package("lm-eval", "lm_eval", "lm-eval", "python -m asterism.evaluation.lm_eval")
        from lm_eval.__main__ import cli_evaluate

        import asterism.evaluation.harness  # noqa: F401

        cli_evaluate()
    except AsterismError as error:
        print(f"asterism: error: {error}".splitlines()[0], file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
