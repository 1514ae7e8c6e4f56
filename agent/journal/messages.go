package journal

import "outrider.org/outrider/agent/condition"

// Message IDs (sd_journal(3), MESSAGE_ID=). They never change; packaging/catalog/outrider.catalog
// explains them.
const (
	MessageIDEpochStarted      = "724efa2679bf489dbd4dff55c679e2ea"
	MessageIDEpochLive         = "8429cd9d3efe4df99b7ff7afdd386b39"
	MessageIDEpochExited       = "8031a499b192428996a0f393887e9751"
	MessageIDReloadRefused     = "5177ad40e7c64ae7957e589a5505718d"
	MessageIDDraining          = "d5b13e30391f414e994b40bd9d4a3818"
	MessageIDSecretRotated     = "4f9ef40bd9b84c01b0b0fb90b12f2e97"
	MessageIDRestartsExhausted = "b33e6f7711e94faba6d26327f36affa3"
)

// messageID returns the message ID of a kind of event (condition.Kind…), or "".
func messageID(kind string) string {
	switch kind {
	case condition.KindEpochStarted:
		return MessageIDEpochStarted
	case condition.KindEpochLive:
		return MessageIDEpochLive
	case condition.KindEpochExited:
		return MessageIDEpochExited
	case condition.KindReloadRefused:
		return MessageIDReloadRefused
	case condition.KindDraining, condition.KindStopping: // a stop begins with a drain
		return MessageIDDraining
	case condition.KindSecretRotated:
		return MessageIDSecretRotated
	case condition.KindRestartsExhausted:
		return MessageIDRestartsExhausted
	}
	return ""
}
