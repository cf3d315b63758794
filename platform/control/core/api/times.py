"""Times in JSON are integer Unix seconds; a missing time is null."""

import datetime as dt


def unix(moment: dt.datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
