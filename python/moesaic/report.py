"""The report of a training run.

    python -m moesaic.report RUN_DIR [--html FILE] [--tensorboard DIR]

Writes one self-contained HTML page, and on request TensorBoard event files. `moesaic report` and `moesaic train` call it.
Ends with 1 and a line on standard error when it cannot.
"""

import argparse
import os
import sys
from pathlib import Path

PLOTTING = "plotly==7.1.0 and numpy"


def write_html(run, path):
    from moesaic import report_page

    text = report_page.render(run)
    renewed = path.with_name(path.name + ".tmp")
    renewed.write_text(text)
    os.replace(renewed, path)  # a reader never sees half a page


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="moesaic.report", description="The report of a training run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--html", type=Path, help="write the page here")
    parser.add_argument("--tensorboard", type=Path, help="write TensorBoard event files into this directory")
    options = parser.parse_args(arguments)
    try:
        from moesaic import report_data

        run = report_data.load(options.run_dir)
        if options.html:
            write_html(run, options.html)
        if options.tensorboard:
            from moesaic import report_tensorboard

            report_tensorboard.write(run, options.tensorboard)
    except ModuleNotFoundError as error:
        needed = "tensorboard==2.21.0" if (error.name or "").startswith("tensorboard") else PLOTTING
        print(f"moesaic.report: {sys.executable} has no {error.name}; install {needed} into it", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"moesaic.report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
