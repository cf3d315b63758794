"""Routes below /v1/."""

from django.urls import path

from control.queue.jobs.views import JobCancelView, JobEventsView, JobListView, JobView

urlpatterns = [
    path("jobs", JobListView.as_view()),
    path("jobs/<str:job_id>", JobView.as_view()),
    path("jobs/<str:job_id>/events", JobEventsView.as_view()),
    path("jobs/<str:job_id>/cancel", JobCancelView.as_view()),
]
