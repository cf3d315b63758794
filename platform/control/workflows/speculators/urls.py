from django.urls import path

from control.workflows.speculators.views import (
    SpeculatorArchiveView,
    SpeculatorExportView,
    SpeculatorPlotView,
    SpeculatorsView,
    SpeculatorView,
)

urlpatterns = [
    path("speculators", SpeculatorsView.as_view()),
    path("speculators/<str:speculator_id>", SpeculatorView.as_view()),
    path("speculators/<str:speculator_id>/archive", SpeculatorArchiveView.as_view()),
    path("speculators/<str:speculator_id>/export", SpeculatorExportView.as_view()),
    path("speculators/<str:speculator_id>/plot", SpeculatorPlotView.as_view()),
]
