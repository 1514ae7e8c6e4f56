package systemtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

// systemd-analyze reports no error in the installed units, and the exposure level of each service
// is at most the permitted one.
func TestUnitsAreValidAndSafe(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	t.Log(h.MustRun(t, "systemctl", "--version"))
	names := strings.Fields(h.MustRun(t, "ls", "/usr/lib/systemd/system"))
	var ours []string
	for _, name := range names {
		if strings.HasPrefix(name, "outrider") {
			ours = append(ours, strings.Replace(name, "@.", "@web.", 1))
		}
	}
	if out := h.MustRun(t, "systemd-analyze", append([]string{"verify", "--man=no"},
		ours...)...); out != "" {
		t.Errorf("systemd-analyze verify:\n%s", out)
	}
	for _, unit := range []string{"outrider.service", "outrider@web.service",
		"outrider-envoy.service", "outrider-envoy@web.service",
		"outrider-capture.service", "outrider-capture@web.service"} {
		if policy := h.MustRun(t, "systemctl", "show", "--property=OOMPolicy", "--value",
			unit); strings.TrimSpace(policy) != "continue" {
			t.Errorf("OOMPolicy of %s is %q: a child that the kernel ends would stop all of it",
				unit, policy)
		}
	}
	for _, unit := range []string{"outrider.service", "outrider@web.service"} {
		if out := h.MustRun(t, "systemctl", "show", "--property=ExecStopPost",
			unit); strings.Contains(out, "/sh") || !strings.Contains(out, "cleanup --unit "+unit) {
			t.Errorf("systemctl status shows a script and not what it does:\n%s", out)
		}
	}
	exposure := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	for unit, most := range map[string]float64{
		"outrider.service": 1.5, "outrider@web.service": 1.5, "outrider-envoy.service": 1.7,
		"outrider-envoy@web.service": 1.7,
		"outrider-capture.service":   1.7, "outrider-capture@web.service": 1.7,
		"outrider-capture-early.service": 1, "outrider-capture-early@web.service": 1,
		"outrider-wait-online.service": 1, "outrider-wait-online@web.service": 1,
		"outrider-cleanup.service": 2.5, "outrider-seal.service": 2,
		"outrider-resolved@web.service": 1.9, "outrider-probe@web.service": 1.2,
	} {
		out := h.MustRun(t, "systemd-analyze", "security", "--no-pager", unit)
		match := exposure.FindStringSubmatch(out)
		if match == nil {
			t.Fatalf("%s: %s", unit, out)
		}
		level, err := strconv.ParseFloat(match[1], 64)
		if err != nil || level > most {
			t.Errorf("%s is exposed at %s, at most %v:\n%s", unit, match[1], most, out)
		}
		t.Logf("%s: %s", unit, match[1])
	}
}

// A template unit differs from its plain unit only in the instance's name, so it has the same
// hardening. The templates that systemd starts for each connection to a socket have no plain unit.
func TestTemplates(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(parts.RepositoryRoot(), "units")
	templates, err := filepath.Glob(filepath.Join(folder, "*@.*"))
	templates = slices.DeleteFunc(templates, func(path string) bool {
		return slices.Contains([]string{"outrider-resolved@.service", "outrider-probe@.service"},
			filepath.Base(path))
	})
	if err != nil || len(templates) != 8 {
		t.Fatalf("%d templates: %v, %v", len(templates), templates, err)
	}
	for _, path := range templates {
		unit := strings.Replace(path, "@.", ".", 1)
		if diff := cmp.Diff(settings(t, unit), settings(t, path)); diff != "" {
			t.Errorf("%s and its template differ (-unit +template):\n%s", filepath.Base(unit), diff)
		}
	}
}

// instance removes the instance's name from the lines of a template unit.
var instance = strings.NewReplacer("STATE_DIRECTORY=/var/lib/outrider/outrider",
	"STATE_DIRECTORY=/var/lib/outrider", " (%i)", "", "StateDirectory=outrider/outrider",
	"StateDirectory=outrider", "@%i.", ".", " --instance %i", "", " -instance %i", "",
	" -i %i", "", "/%i", "", "@NAME", "")

// settings returns a unit's lines without comments, instance names, and ExecStartPre=, which
// creates directories that only instances need.
func settings(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		line = instance.Replace(strings.TrimSpace(line))
		if line != "" && line[0] != '#' && !strings.HasPrefix(line, "ExecStartPre=") {
			lines = append(lines, line)
		}
	}
	return lines
}

// For each hardening setting that a unit does not use, a comment in the unit says why.
func TestUnits_ExplainMissingHardening(t *testing.T) {
	t.Parallel()
	known := []string{
		"PrivateDevices", "PrivateIPC", "PrivateMounts", "PrivateNetwork", "PrivateTmp",
		"PrivateUsers", "ProtectClock", "ProtectControlGroups",
		"ProtectHome", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
		"ProtectKernelTunables", "ProtectProc", "ProcSubset",
		"ProtectSystem", "NoNewPrivileges", "LockPersonality", "MemoryDenyWriteExecute",
		"RemoveIPC", "RestrictAddressFamilies",
		"RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures",
		"SystemCallFilter", "CapabilityBoundingSet",
		"DevicePolicy", "KeyringMode", "UMask", "RootDirectory", "DynamicUser", "IPAddressDeny",
	}
	for _, name := range []string{"outrider.service", "outrider-envoy.service",
		"outrider-capture.service", "outrider-wait-online.service", "outrider-cleanup.service",
		"outrider-seal.service", "outrider-capture-early.service", "outrider-resolved@.service",
		"outrider-probe@.service"} {
		text, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "units", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, setting := range known {
			set := regexp.MustCompile(fmt.Sprintf(`(?m)^%s=(\S*)`, setting)).FindStringSubmatch(
				string(text))
			explained := regexp.MustCompile(fmt.Sprintf(`(?m)^#.*\b%s\b`, setting)).Match(text)
			if (len(set) < 2 || set[1] == "no") && !explained {
				t.Errorf("%s has no %s, and does not say why", name, setting)
			}
		}
	}
}
