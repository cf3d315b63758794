from django.urls import path

from control.workflows.datasets.views import (
    DatasetErrorsView,
    DatasetFilterView,
    DatasetMixView,
    DatasetPreviewView,
    DatasetSplitsView,
    DatasetsView,
    DatasetView,
)

urlpatterns = [
    path("datasets", DatasetsView.as_view()),
    path("datasets/mix", DatasetMixView.as_view()),
    path("datasets/<str:dataset_id>", DatasetView.as_view()),
    path("datasets/<str:dataset_id>/errors", DatasetErrorsView.as_view()),
    path("datasets/<str:dataset_id>/filter", DatasetFilterView.as_view()),
    path("datasets/<str:dataset_id>/preview", DatasetPreviewView.as_view()),
    path("datasets/<str:dataset_id>/splits", DatasetSplitsView.as_view()),
]
