"""Routes below /v1/."""

from django.urls import path

from control.workflows.pipelines.views import PipelineCancelView, PipelineListView, PipelineResumeView, PipelineView

urlpatterns = [
    path("pipelines", PipelineListView.as_view()),
    path("pipelines/<str:pipeline_id>", PipelineView.as_view()),
    path("pipelines/<str:pipeline_id>/cancel", PipelineCancelView.as_view()),
    path("pipelines/<str:pipeline_id>/resume", PipelineResumeView.as_view()),
]
