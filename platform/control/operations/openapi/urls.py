from django.urls import path

from control.operations.openapi.views import document

urlpatterns = [path("openapi.json", document)]
