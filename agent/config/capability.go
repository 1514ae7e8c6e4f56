package config

// capability is a feature that a key requires and this version may lack. Its text completes "needs
// …".
type capability string

const resolvedRouting capability = "routing through systemd-resolved"

// missing returns the capabilities that this version lacks. To ship one, delete it here: its keys
// are then valid.
func missing() map[capability]bool {
	return map[capability]bool{resolvedRouting: true}
}

// unavailable returns the missing capability that the value of a key requires, or "". The default
// and its derived value require none.
func (k key) unavailable(missing map[capability]bool) capability {
	if k.isDefault() || k.derived != nil && k.get() == k.derived() {
		return ""
	}
	if missing[k.capability] {
		return k.capability
	}
	return ""
}
