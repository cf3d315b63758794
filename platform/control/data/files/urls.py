from django.urls import path

from control.data.files.views import FileContentView, FilesView, FileView

urlpatterns = [
    path("files", FilesView.as_view()),
    path("files/<str:file_id>", FileView.as_view()),
    path("files/<str:file_id>/content", FileContentView.as_view()),
]
