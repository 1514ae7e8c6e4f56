package bus

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

// TestPolkitKnowsEachAction checks that the installed policy has exactly the actions of the
// methods.
func TestPolkitKnowsEachAction(t *testing.T) {
	text, err := os.ReadFile(
		filepath.Join(parts.RepositoryRoot(), "packaging/polkit/org.outrider.agent1.policy"))
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Actions []struct {
			ID          string `xml:"id,attr"`
			Description string `xml:"description"`
			Message     string `xml:"message"`
			Any         string `xml:"defaults>allow_any"`
			Inactive    string `xml:"defaults>allow_inactive"`
			Active      string `xml:"defaults>allow_active"`
			Annotations []struct {
				Key   string `xml:"key,attr"`
				Value string `xml:",chardata"`
			} `xml:"annotate"`
		} `xml:"action"`
	}
	if err := xml.Unmarshal(text, &policy); err != nil {
		t.Fatal(err)
	}
	var known, asked []string
	for _, action := range policy.Actions {
		known = append(known, action.ID)
		if action.Description == "" || action.Message == "" {
			t.Errorf("%s has no words for people", action.ID)
		}
		if action.Any != "auth_admin" || action.Inactive != "auth_admin" ||
			action.Active != "auth_admin" && action.Active != "auth_admin_keep" {
			t.Errorf("%s is not for administrators only", action.ID)
		}
		if len(action.Annotations) != 1 ||
			action.Annotations[0].Key != "org.freedesktop.policykit.owner" ||
			action.Annotations[0].Value != "unix-user:outrider" {
			t.Errorf("%s is not the agent's: polkit would not answer it", action.ID)
		}
	}
	for _, description := range readAll(t) {
		for _, method := range description.Methods {
			if action := method.action(); action != "" && !slices.Contains(asked, action) {
				asked = append(asked, action)
			}
		}
	}
	slices.Sort(known)
	slices.Sort(asked)
	if diff := cmp.Diff(asked, known); diff != "" {
		t.Errorf("actions (-asked for +known):\n%s", diff)
	}
}

// TestOnlyReadingIsOpen checks that all methods except those listed require authorisation.
func TestOnlyReadingIsOpen(t *testing.T) {
	open := []string{"GetEpoch", "ListEpochs"}
	all := readAll(t)
	for _, name := range []string{managerInterface, epochInterface, secretInterface} {
		for _, method := range all[name].Methods {
			if (method.action() == "") != slices.Contains(open, method.Name) {
				t.Errorf("%s.%s asks polkit for %q", name, method.Name, method.action())
			}
		}
	}
}
