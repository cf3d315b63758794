from django.urls import path

from control.models.catalog.views import BaseModelsView, BaseModelView

urlpatterns = [
    path("base_models", BaseModelsView.as_view()),
    path("base_models/<str:model_id>", BaseModelView.as_view()),
]
