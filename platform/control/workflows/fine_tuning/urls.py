from django.urls import path

from control.workflows.fine_tuning.views import (
    FineTuningCancelView,
    FineTuningCheckpointAdapterView,
    FineTuningCheckpointsView,
    FineTuningCheckpointView,
    FineTuningEventsView,
    FineTuningJobsView,
    FineTuningJobView,
    FineTuningPauseView,
    FineTuningResumeView,
)

urlpatterns = [
    path("fine_tuning/jobs", FineTuningJobsView.as_view()),
    path("fine_tuning/jobs/<str:job_id>", FineTuningJobView.as_view()),
    path("fine_tuning/jobs/<str:job_id>/cancel", FineTuningCancelView.as_view()),
    path("fine_tuning/jobs/<str:job_id>/pause", FineTuningPauseView.as_view()),
    path("fine_tuning/jobs/<str:job_id>/resume", FineTuningResumeView.as_view()),
    path("fine_tuning/jobs/<str:job_id>/events", FineTuningEventsView.as_view()),
    path("fine_tuning/jobs/<str:job_id>/checkpoints", FineTuningCheckpointsView.as_view()),
    path("fine_tuning/jobs/<str:job_id>/checkpoints/<str:checkpoint_id>", FineTuningCheckpointView.as_view()),
    path(
        "fine_tuning/jobs/<str:job_id>/checkpoints/<str:checkpoint_id>/adapter",
        FineTuningCheckpointAdapterView.as_view(),
    ),
]
