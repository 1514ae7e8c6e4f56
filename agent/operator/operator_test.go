package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// parameters contains valid parameters of operators that do not accept arbitrary ones.
var parameters = map[string]string{
	"CEL": "request.path", "COALESCE": `{"operators": ["DURATION"]}`,
	"COMMON_DURATION": "DS_RX_BEG:DS_RX_END", "METADATA": "ROUTE:a",
	"GRPC_STATUS": "NUMBER", "PATH": "NQ", "REQUESTED_SERVER_NAME": "SNI_ONLY",
	"QUERY_PARAMS": "ORIG",
}

// bootstrap is a bootstrap with placeholders for a header value and the text format of an access
// log.
const bootstrap = `{"static_resources": {"listeners": [{"name": "a", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
"filter_chains": [{"filters": [{"name": "h", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
"stat_prefix": "a", "http_filters": [{"name": "r", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
"route_config": {"request_headers_to_add": [{"header": {"key": "x", "value": %s}}]},
"access_log": [{"name": "f", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/dev/null",
"log_format": {"text_format_source": {"inline_string": %s}}}}]}}]}]}]}}`

// envoyTakes reports whether Envoy accepts a header value and a log format, and returns Envoy's
// output.
func envoyTakes(t *testing.T, value, format string) (bool, string) {
	t.Helper()
	quoted := func(text string) []byte {
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, bootstrap, quoted(value), quoted(format)),
		0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, parts.EnvoyPath(t), "--mode", "validate", "-c", path,
		"--disable-hot-restart", "--concurrency", "1", "-l", "critical").CombinedOutput()
	return err == nil, string(out)
}

func TestCheck_EnvoyTakesWhatIsAllowed(t *testing.T) {
	var all []string
	for _, name := range strings.Fields(operatorsAlone + operatorsEither) {
		all = append(all, "%"+name+"%")
	}
	for _, name := range strings.Fields(operatorsWith) {
		parameter := parameters[name]
		if parameter == "" {
			parameter = "a"
		}
		all = append(all, "%"+name+"("+parameter+")%")
	}
	all = append(all, "%CEL(size(request.path))%", "%CEL(has(request.path)):9%")
	format := "100 %% " + strings.Join(all, " ")
	if why, fix := CheckCommandOperators(format); why != "" {
		t.Errorf("refused: %s; %s", why, fix)
	}
	if ok, says := envoyTakes(t, format, format); !ok {
		t.Errorf("Envoy refuses it: %s", says)
	}
}

func TestCheck_EnvoyRefusesWhatIsRefused(t *testing.T) {
	for _, text := range []string{"%NOPE%", "%DURATION", "100 %", "%%%", "%req(a)%", "%REQ%",
		"%DURATION(x)%", "%UPSTREAM_HOST:4%", "%REQ(a):x%", "%REQ(:PATH%", "%REQ(a)b)%"} {
		if why, _ := CheckCommandOperators(text); why == "" {
			t.Errorf("%s is accepted", text)
		}
		for _, ok := range []func() (bool, string){
			func() (bool, string) { return envoyTakes(t, text, "") },
			func() (bool, string) { return envoyTakes(t, "", text) },
		} {
			if accepted, _ := ok(); accepted {
				t.Errorf("Envoy takes %s", text)
			}
		}
	}
}
