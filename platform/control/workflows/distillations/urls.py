from django.urls import path

from control.workflows.distillations.views import DistillationCancelView, DistillationsView, DistillationView

urlpatterns = [
    path("distillations", DistillationsView.as_view()),
    path("distillations/<str:distillation_id>", DistillationView.as_view()),
    path("distillations/<str:distillation_id>/cancel", DistillationCancelView.as_view()),
]
