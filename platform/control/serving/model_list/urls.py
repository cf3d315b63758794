from django.urls import path

from control.serving.model_list.views import ModelsView, ModelView

urlpatterns = [
    path("models", ModelsView.as_view()),
    path("models/<path:name>", ModelView.as_view()),  # path: names may contain a slash, as in "organization/model"
]
