from django.urls import path

from control.openapi.views import document

urlpatterns = [path("openapi.json", document)]
