package validate

import (
	"fmt"

	"outrider.org/outrider/agent/operator"
)

// headerValue returns why Envoy would refuse the value of a header, and the fix; "" if the value is
// valid. For an unknown command operator in a value, Envoy refuses the whole route configuration.
func headerValue(value string) (why, fix string) {
	for i := range len(value) {
		if b := value[i]; b < ' ' && b != '\t' || b == 0x7f {
			return fmt.Sprintf("the value %q has a control character", value), "remove it"
		}
	}
	// PER_REQUEST_STATE is valid in headers, but not in access logs
	return operator.CheckCommandOperators(value, "PER_REQUEST_STATE")
}
