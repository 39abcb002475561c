"""How a peer talks to the benchmark that started it: a JSON object a line."""

import json
import sys


def answer(**values):
    print(json.dumps(values), flush=True)


def run(main):
    """main(*words of the command line). What it raises is an answer too, for whoever asked cannot see a traceback."""
    try:
        main(*sys.argv[1:])
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        raise
