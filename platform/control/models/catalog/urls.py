from django.urls import path

from control.models.catalog.views import (
    BaseModelsView,
    BaseModelView,
    ModelsView,
    ModelView,
    SpeculatorPlotView,
    SpeculatorsView,
    SpeculatorView,
)

urlpatterns = [
    path("models", ModelsView.as_view()),
    path("models/<path:name>", ModelView.as_view()),  # path: names may hold a slash, as "organization/model"
    path("base_models", BaseModelsView.as_view()),
    path("base_models/<str:model_id>", BaseModelView.as_view()),
    path("speculators", SpeculatorsView.as_view()),
    path("speculators/<str:speculator_id>", SpeculatorView.as_view()),
    path("speculators/<str:speculator_id>/plot", SpeculatorPlotView.as_view()),
]
