from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0008_request_deletion'),
        ('files', '0003_belong_to_projects'),
    ]

    operations = [
        migrations.AddField(
            model_name='file',
            name='made_from',
            field=models.CharField(blank=True, db_default='', default='', help_text='The id of the file or dataset of which it is a part, of the deployment whose captured requests it has, or of the speculator that was exported. Empty: it was uploaded, or a batch made it.', max_length=40),
        ),
    ]
