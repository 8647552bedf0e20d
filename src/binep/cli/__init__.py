"""The command line: thin, one function a command. Everything it does is a function elsewhere."""

import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from binep.cli.datasets import data_check, data_fetch
from binep.cli.measuring import evaluate, gradcheck, report
from binep.cli.output import INTERRUPTED, Command, Group, expect_any_reader, fail
from binep.cli.shipping import export, hardware, predict
from binep.cli.studying import bench, choose, reproduce, results, tune
from binep.cli.sweeping import sweep
from binep.cli.training import list_runs, recipes, train
from binep.errors import BinepError, ProcessLost
from binep.files import refusal

# Torch's threads would wait for each other without giving way, and with another program on one of
# the cores each would wait for its turn again and again. To be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

app = typer.Typer(
    name="binep",
    cls=Group,
    help="Train, study and ship dynamical binary neural networks by Equilibrium Propagation.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from binep import __version__

        print(f"binep {__version__}")
        raise typer.Exit()


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Train, study and ship dynamical binary neural networks by Equilibrium Propagation."""


# In the order of the help: groups, and the commands of each.
COMMANDS: dict[str, dict[str, Any]] = {
    "Every day": {
        "train": train,
        "recipes": recipes,
        "runs": list_runs,
        "eval": evaluate,
        "report": report,
        "predict": predict,
    },
    "Research": {
        "gradcheck": gradcheck,
        "tune": tune,
        "choose": choose,
        "reproduce": reproduce,
        "sweep": sweep,
        "results": results,
        "bench": bench,
    },
    "Shipping": {"export": export, "hardware": hardware},
}
for group, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=Command, rich_help_panel=group)(command)
data_app = typer.Typer(no_args_is_help=True, help="Fetch and check data sets.", cls=Group)
data_app.command("fetch", cls=Command)(data_fetch)
data_app.command("check", cls=Command)(data_check)
app.add_typer(data_app, name="data", rich_help_panel="Every day")

# Typer's own base class of a mistake on the command line, whichever click it is built on.
UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line: exit code 0 done, 2 a user's mistake in one line, 1 anything else."""
    expect_any_reader()
    try:
        code = app(standalone_mode=False, prog_name="binep") or 0
        if sys.stdout is not None:  # closed by who called us
            sys.stdout.flush()
        # On Ctrl-C some versions of typer return a code where others raise.
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except BinepError as error:
        fail(str(error))
    except ProcessLost as error:
        fail(str(error), 1)
    except UsageError as error:
        # Without a word the help was asked for, and is printed already.
        if not (message := error.format_message().rstrip(".")):
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "binep"
        fail(f"{message}. See: {where} --help")
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output, such as `head`, has seen enough.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        # What no place foresaw: the disk is full, a name is too long, nobody may read it. Output
        # that could not be written is not tried again at the end.
        if sys.stdout is not None:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(f"{error.filename or 'output'}: {refusal(error)}")
    except MemoryError:
        fail("out of memory")
