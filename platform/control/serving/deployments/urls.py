from django.urls import path

from control.serving.deployments import views

urlpatterns = [
    path("deployments", views.DeploymentsView.as_view()),
    path("deployments/<str:deployment_id>", views.DeploymentView.as_view()),
    path("deployments/<str:deployment_id>/cost", views.DeploymentCostView.as_view()),
    path("deployments/<str:deployment_id>/events", views.DeploymentEventsView.as_view()),
    path("deployments/<str:deployment_id>/metrics", views.DeploymentMetricsView.as_view()),
    path("deployments/<str:deployment_id>/start", views.DeploymentStartView.as_view()),
    path("deployments/<str:deployment_id>/stop", views.DeploymentStopView.as_view()),
]
