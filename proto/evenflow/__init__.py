"""The generated protocol modules. Nothing else lives here."""
