# send_event.sh URL JSON: signs an event and sends it, as GitHub does
signature=$(printf %s "$2" | openssl dgst -sha256 -hmac "$WEBHOOK_SECRET" -r | cut -d ' ' -f 1)
curl -s -f -S "$1" -d "$2" -H "x-hub-signature-256: sha256=$signature"
