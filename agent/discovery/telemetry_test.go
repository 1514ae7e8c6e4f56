package discovery_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const logged = "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\n" +
	"metadata: {name: log, namespace: shop}\nspec:\n  accessLogging:\n" +
	"  - providers: [{name: envoy}]\n    filter: {expression: %s}\n"

// TestTelemetry_KeepsLastGoodVersion makes a Telemetry invalid. The problem is reported, also after
// a restart, and the last good version of the Telemetry is persisted.
func TestTelemetry_KeepsLastGoodVersion(t *testing.T) {
	l := newRuns(t)
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.put("", "connectTimeout: 10s\n")
	l.put("log.yaml", fmt.Sprintf(logged, "'true'"))
	l.next()
	l.expect("all is good", "a 10s", false)
	l.put("log.yaml", fmt.Sprintf(logged, "'true &&'"))
	problem := "log.yaml:7: Telemetry shop/log: spec.accessLogging[0].filter.expression: is no CEL"
	l.expect("the filter is broken", "a 10s", true, problem)
	l.next()
	l.expect("it is broken still", "a 10s", true, problem)
	text, err := os.ReadFile(l.lastGood)
	if err != nil || !strings.Contains(string(text), "Telemetry") {
		t.Errorf("the last good version is not stored: %v\n%s", err, text)
	}
	l.put("log.yaml", fmt.Sprintf(logged, "'false'"))
	l.expect("it is corrected", "a 10s", false)
}
