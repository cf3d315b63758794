from django.urls import path

from control.serving.rollouts.views import RolloutCancelView, RolloutsView, RolloutView

urlpatterns = [
    path("deployments/<str:deployment_id>/rollouts", RolloutsView.as_view()),
    path("deployments/<str:deployment_id>/rollouts/<str:rollout_id>", RolloutView.as_view()),
    path("deployments/<str:deployment_id>/rollouts/<str:rollout_id>/cancel", RolloutCancelView.as_view()),
]
