from django.urls import path

from control.workflows.lineage.views import LineageView

urlpatterns = [path("lineage/<str:object_id>", LineageView.as_view())]
