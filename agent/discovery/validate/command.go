package validate

import (
	"fmt"

	"outrider.org/outrider/agent/operator"
)

// headerValue returns why Envoy refuses a header's value, and the fix; "" if it is valid. Envoy
// refuses a whole route configuration for an unknown command operator.
func headerValue(value string) (why, fix string) {
	for i := range len(value) {
		if b := value[i]; b < ' ' && b != '\t' || b == 0x7f {
			return fmt.Sprintf("the value %q has a control character", value), "remove it"
		}
	}
	return operator.Check(value, "PER_REQUEST_STATE") // not in access logs
}
