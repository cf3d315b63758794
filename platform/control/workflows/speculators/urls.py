from django.urls import path

from control.workflows.speculators.views import SpeculatorExportView

urlpatterns = [path("speculators/<str:speculator_id>/export", SpeculatorExportView.as_view())]
