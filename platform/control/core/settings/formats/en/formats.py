"""Times in the console as logs have them: sortable, to the second, with their zone. Django's own say `2:54 p.m.`"""

DATE_FORMAT = "Y-m-d"
DATETIME_FORMAT = "Y-m-d H:i:s T"
