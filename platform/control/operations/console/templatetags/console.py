"""Template tags and filters of the console's pages."""

from django import template
from django.utils.safestring import SafeString

from control.operations.console.rendering import badge, link, number, progress_bar
from control.queue.jobs.models import Job

register = template.Library()
register.filter("figure", number)
register.filter("row_link", link)


@register.simple_tag
def job_badge(job: Job) -> SafeString:
    return badge(job, job.status, active=job.status in (Job.Status.QUEUED, Job.Status.RUNNING))


@register.simple_tag
def job_progress(job: Job) -> SafeString:
    return progress_bar(job, job.progress_done, job.progress_total, job.progress_unit)
