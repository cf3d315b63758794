from django.urls import path

from control.serving.gateway import views

urlpatterns = [
    path("chat/completions", views.chat_completions),
    path("completions", views.completions),
    path("audit", views.audit),
]
