"""A report: one self-contained page about some runs, beside what the paper says.

Runs that differ in their seed only are one group, and every number of a group is a mean over seeds
with its standard deviation and n.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from binep.data import Folder
from binep.engines.select import select_device
from binep.errors import BinepError
from binep.files import make_folder, write_whole
from binep.report.groups import (
    Group,
    changes,
    check_metrics,
    group_runs,
    open_runs,
    seconds_until,
    settings,
    spread_at,
)
from binep.report.page import headline, make_page
from binep.report.reading import Reading, read_group, read_network, reading_cost

__all__ = [
    "Group",
    "Reading",
    "changes",
    "check_metrics",
    "group_runs",
    "headline",
    "open_runs",
    "read_network",
    "reading_cost",
    "seconds_until",
    "settings",
    "spread_at",
    "write_report",
]


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    device: str = "auto",
    data_dir: Folder | None = None,
    offline: bool = False,
    images: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write `out/report.html` about runs, or about all runs inside folders; returns its path.

    Args:
        images: how many test images the trained networks read; by default as many as take about
            a minute, all of them where a network is small.
        say: told how far the page is.
    """
    if images is not None and images < 1:
        raise BinepError(f"images={images}: allowed is at least 1")
    select_device(device)
    groups = group_runs(open_runs(folders))
    readings = []
    for n, group in enumerate(groups, start=1):
        say(f"{n} of {len(groups)}: {group.label} reads test images")
        readings.append(read_group(group, device, data_dir, offline, images))
    say(f"drawing the figures of {len(groups)} recipe{'s' * (len(groups) > 1)}")
    make_folder(out)
    path = out / "report.html"
    write_whole(path, make_page(groups, readings))
    return path
