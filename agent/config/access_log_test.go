package config

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

// parameters holds valid parameters of operators that reject arbitrary ones.
var parameters = map[string]string{
	"CEL": "request.path", "COALESCE": `{"operators": ["DURATION"]}`,
	"COMMON_DURATION": "DS_RX_BEG:DS_RX_END", "METADATA": "ROUTE:a",
	"GRPC_STATUS": "NUMBER", "PATH": "NQ", "REQUESTED_SERVER_NAME": "SNI_ONLY",
	"QUERY_PARAMS": "ORIG",
}

// envoyTakes reports whether Envoy accepts a format, and returns its output.
func envoyTakes(t *testing.T, format string) (bool, string) {
	t.Helper()
	encoded, err := json.Marshal(format)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(path,
		fmt.Appendf(nil,
			`{"static_resources": {"listeners": [{"name": "a", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
"filter_chains": [{"filters": [{"name": "h", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
"stat_prefix": "a", "route_config": {}, "http_filters": [{"name": "r", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
"access_log": [{"name": "f", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/dev/null",
"log_format": {"text_format_source": {"inline_string": %s}}}}]}}]}]}]}}`, encoded), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, parts.Envoy(t), "--mode", "validate", "-c", path,
		"--disable-hot-restart", "--concurrency", "1", "-l", "critical").CombinedOutput()
	return err == nil, string(out)
}

func TestEnvoyTakesEveryOperatorThatIsAllowed(t *testing.T) {
	var all []string
	for _, name := range strings.Fields(operatorsAlone) {
		all = append(all, "%"+name+"%")
	}
	for _, name := range strings.Fields(operatorsEither) {
		all = append(all, "%"+name+"%")
	}
	for _, name := range strings.Fields(operatorsWith) {
		parameter := parameters[name]
		if parameter == "" {
			parameter = "a"
		}
		all = append(all, "%"+name+"("+parameter+")%")
	}
	format := "100 %% " + strings.Join(all, " ")
	if p := logFormat(format); p != nil {
		t.Errorf("refused: %s; %s", p.message, p.cure)
	}
	if ok, says := envoyTakes(t, format); !ok {
		t.Errorf("Envoy refuses it: %s", says)
	}
}

func TestEnvoyRefusesWhatIsRefused(t *testing.T) {
	for _, format := range []string{"%NOPE%", "%DURATION", "100 %", "%%%", "%req(a)%", "%REQ%",
		"%DURATION(x)%", "%UPSTREAM_HOST:4%", "%REQ(a):x%"} {
		if logFormat(format) == nil {
			t.Errorf("%s is accepted", format)
		}
		if ok, _ := envoyTakes(t, format); ok {
			t.Errorf("Envoy takes %s", format)
		}
	}
}

func FuzzLogFormat(f *testing.F) {
	for _, seed := range []string{"", "%", "%%", "%REQ(a)%", `{"a": "%DURATION%"}`,
		`{"a": [1, {"b": "%"}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, format string) { logFormat(format) })
}
