"""What of an archive may go: captures that are old enough, and what lost ones left behind."""
