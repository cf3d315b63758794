"""Times in the console look like those in logs: sortable, with seconds and zone. Django's default is `2:54 p.m.`"""

DATE_FORMAT = "Y-m-d"
DATETIME_FORMAT = "Y-m-d H:i:s T"
