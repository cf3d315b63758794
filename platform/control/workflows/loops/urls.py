from django.urls import path

from control.workflows.loops.views import LoopRoundsView, LoopRoundView, LoopView

urlpatterns = [
    path("deployments/<str:deployment_id>/loop", LoopView.as_view()),
    path("deployments/<str:deployment_id>/loop/rounds", LoopRoundsView.as_view()),
    path("deployments/<str:deployment_id>/loop/rounds/<str:round_id>", LoopRoundView.as_view()),
]
