package view_test

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

func TestSecrets_FilesOfASecret(t *testing.T) {
	m, _ := meshtest.New(t, web+gateway)
	var held view.SecretFiles
	looks := 0
	look := func(secrets []translate.ConfiguredSecret) []view.SecretFiles {
		looks++
		if len(secrets) != 1 {
			t.Fatalf("looks at %v", secrets)
		}
		return []view.SecretFiles{held}
	}
	v, err := view.New(m.Mesh, router, view.NewCache(), look)
	if err != nil {
		t.Fatal(err)
	}
	v.Update(m.EverythingChanged())
	key := resource.Key{Type: resource.SecretType, Name: "file-cert:/etc/cert.pem~/etc/key.pem"}
	secret := func() *resource.Resource {
		snapshot, _ := v.Feed().Current()
		return snapshot.Get(key)
	}
	first := secret()
	if first == nil || len(first.Origins) != 1 || looks != 1 {
		t.Fatalf("the secret is %v after %d looks", first, looks)
	}
	for _, step := range []struct {
		held      view.SecretFiles
		published bool
		problem   string
	}{
		{view.SecretFiles{Missing: []string{"/etc/cert.pem"}}, true, "/etc/cert.pem does not exist"},
		{view.SecretFiles{Unreadable: []string{"no one may read it"}}, true, "no one may read it"},
		{view.SecretFiles{NotReadYet: []string{"/etc/key.pem"}}, false,
			"/etc/key.pem could not be read yet"},
		{view.SecretFiles{Fingerprint: 1}, true, ""},
	} {
		held = step.held
		v.RereadSecrets(map[string]bool{"/etc/key.pem": true})
		v.Update(m.Set(web + gateway))
		if got := secret(); (got != nil) != step.published {
			t.Errorf("%+v: the secret is %v", step.held, got)
		}
		got := meshtest.FormatProblems(v.Problems()["secret/"+key.Name])
		if (step.problem == "") != (got == "") || !strings.Contains(got, step.problem) {
			t.Errorf("%+v: problems %q", step.held, got)
		}
	}
	if secret().Version == first.Version {
		t.Error("another fingerprint does not change the secret")
	}
	before := looks
	v.RereadSecrets(map[string]bool{"/etc/other.pem": true})
	v.Update(m.Set(web + gateway))
	if looks != before {
		t.Error("looks at the files again though none of them has changed")
	}
	v.Update(m.Set(web))
	if got := secret(); got != nil {
		t.Errorf("the secret of a removed Gateway is %v", got)
	}
	v.ConfiguredSecrets(func(s translate.ConfiguredSecret, _ []resource.Origin) { t.Errorf("needs %v", s) })
}

func TestView_OfUnknownKindOfProxy(t *testing.T) {
	m, _ := meshtest.New(t, web)
	node := router
	node.Type = "waypoint"
	if _, err := view.New(m.Mesh, node, view.NewCache(), nil); err == nil ||
		!strings.Contains(err.Error(), "waypoint") {
		t.Errorf("a waypoint: %v", err)
	}
}
