from django.urls import path

from control.workflows.batches.views import (
    BatchCancelView,
    BatchesView,
    BatchRepairView,
    BatchResultsView,
    BatchResumeView,
    BatchView,
)

urlpatterns = [
    path("batches", BatchesView.as_view()),
    path("batches/<str:batch_id>", BatchView.as_view()),
    path("batches/<str:batch_id>/cancel", BatchCancelView.as_view()),
    path("batches/<str:batch_id>/repair", BatchRepairView.as_view()),
    path("batches/<str:batch_id>/resume", BatchResumeView.as_view()),
    path("batches/<str:batch_id>/results", BatchResultsView.as_view()),
]
