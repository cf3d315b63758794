"""Routes below /v1/."""

from django.urls import path

from control.serving.captures.views import CaptureFileView, CaptureView

urlpatterns = [
    path("deployments/<str:deployment_id>/capture", CaptureView.as_view()),
    path("deployments/<str:deployment_id>/capture/file", CaptureFileView.as_view()),
]
