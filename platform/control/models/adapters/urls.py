from django.urls import path

from control.models.adapters.views import AdapterContentView, AdaptersView, AdapterView

urlpatterns = [
    path("adapters", AdaptersView.as_view()),
    path("adapters/<str:adapter_id>", AdapterView.as_view()),
    path("adapters/<str:adapter_id>/content", AdapterContentView.as_view()),
]
