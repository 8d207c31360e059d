"""What graders use on recorded evidence: plain data in, findings out. No torch here."""
