"""Routes below /v1/."""

from django.urls import path

from control.workflows.evaluations.views import (
    CertificateKeyView,
    EvaluationCancelView,
    EvaluationCapacityView,
    EvaluationCertificateView,
    EvaluationPlotView,
    EvaluationsView,
    EvaluationView,
)

urlpatterns = [
    path("evaluations", EvaluationsView.as_view()),
    path("evaluations/<str:evaluation_id>", EvaluationView.as_view()),
    path("evaluations/<str:evaluation_id>/cancel", EvaluationCancelView.as_view()),
    path("evaluations/<str:evaluation_id>/capacity", EvaluationCapacityView.as_view()),
    path("evaluations/<str:evaluation_id>/certificate", EvaluationCertificateView.as_view()),
    path("evaluations/<str:evaluation_id>/plot", EvaluationPlotView.as_view()),
    path("certificates/public_key", CertificateKeyView.as_view()),
]
